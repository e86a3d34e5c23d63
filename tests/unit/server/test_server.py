"""A whole server on the test's event loop: its advertised address, its start and stop."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.server.addresses import bind
from conveyor.server.server import Server
from tests.unit.kafka_api.requests import API_VERSIONS, framed, request
from tests.unit.server.memory_server import running, server


async def advertised(made: Server) -> str:
    async with running(made):
        [broker] = made.broker.metadata.image.brokers.values()
        return f"{broker.host}:{broker.port}"


async def test_the_bound_address_is_advertised() -> None:
    made = server()
    assert await advertised(made) == str(made.kafka_address)


async def test_the_advertised_setting_is_advertised() -> None:
    assert await advertised(server(network__advertised="broker.example:19092")) == "broker.example:19092"


async def test_a_wildcard_is_never_advertised() -> None:
    endpoint = await advertised(server(network__kafka="0.0.0.0:0", network__insecure=True))
    assert not endpoint.startswith("0.0.0.0:")


@pytest.mark.parametrize("which", ["network.kafka", "network.http", "network.advertised"])
async def test_a_wrong_address_is_named(which: str) -> None:
    with pytest.raises(SettingsError, match=f"setting '{which}' is 'nowhere'"):
        await server(None, **{which.replace(".", "__"): "nowhere"}).start()


async def test_an_address_open_to_other_machines_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--http 0\.0\.0\.0:0 can be reached from other machines"):
        await server(network__http="0.0.0.0:0").start()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"this is no database, whatever its name says")
    failed = server(tmp_path)
    with pytest.raises(StartupError, match=r"the data directory cannot be used: .*not a database"):
        await failed.start()
    bind(failed.kafka_address, "kafka").close()
    (tmp_path / "metadata.sqlite").unlink()
    async with running(server(tmp_path)):
        pass


def test_client_of_zookeeper_is_not_loaded_without_need() -> None:
    program = "import sys, conveyor.server.server\nassert 'kazoo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_bug_stops_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def bug() -> None:
        raise AssertionError("this cannot be")

    with caplog.at_level(logging.CRITICAL):
        async with running(server()) as made:
            made.broker.tasks.start(bug())
            await made.stopping.wait()
    assert repr(made.failure) == "AssertionError('this cannot be')"
    assert "broker stops: unexpected error" in caplog.text


async def test_a_stop_closes_the_connections_of_clients() -> None:
    made = server()
    async with running(made):
        reader, writer = await asyncio.open_connection(*made.kafka_address)
        writer.write(framed(request(API_VERSIONS, 0)))
        assert await reader.read(1)
    await reader.read()
    assert reader.at_eof()
    writer.close()
