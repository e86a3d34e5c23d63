"""Strangers at the Kafka listeners: clients that have not logged in, or not finished their handshake of TLS.

They never take the place of known clients, and do not fill the log.
"""

import asyncio
import logging
from pathlib import Path

import pytest

from conveyor.broker.clients import credentials
from conveyor.server.kafka_listener import AUTHENTICATION_S
from tests.certificates import Certificates
from tests.unit.kafka_api.requests import METADATA, framed, request
from tests.unit.server.dialled_site import AUTHENTICATE, PING, answers, comes, ended, frame, login, opened


async def test_oldest_stranger_makes_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(network__max_connections=3) as site:
        user = await site.log_in()
        strangers = [await site.dial("SASL_PLAINTEXT") for _ in range(2)]
        operator = await site.dial("PLAINTEXT")
        assert await ended(strangers[0][0]) == b""
        assert await answers(operator)
        assert "more than 3 connections (network.max_connections)" in caplog.text
        late = await site.log_in()
        assert await ended(strangers[1][0]) == b""
        for known in (user, operator, late):
            assert await answers(known)


async def test_stranger_is_refused_if_all_others_are_known() -> None:
    async with opened(network__max_connections=2) as site:
        known = [await site.log_in(), await site.dial("PLAINTEXT")]
        for listener in ("SASL_PLAINTEXT", "PLAINTEXT"):
            reader, _ = await site.dial(listener)
            assert await ended(reader) == b""
        for pair in known:
            assert await answers(pair)


async def test_client_that_does_not_log_in_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loop, passed_s = asyncio.get_running_loop(), 0
    plain_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: plain_time() + passed_s)
    async with opened() as site:
        stranger = await site.dial("SASL_PLAINTEXT")
        known = [await site.log_in(), await site.dial("PLAINTEXT")]
        for pair in (stranger, *known):
            assert await answers(pair)
        passed_s += AUTHENTICATION_S
        assert await ended(stranger[0]) == b""
        assert f"not authenticated after {AUTHENTICATION_S} s" in caplog.text
        for pair in known:
            assert await answers(pair)


async def test_client_without_its_handshake_of_tls_is_a_stranger(tmp_path: Path) -> None:
    settings = Certificates(tmp_path).settings("127.0.0.1:0,SSL://127.0.0.1:0")
    given = {name.replace(".", "__"): value for name, value in settings.items()}
    async with opened(network__max_connections=2, **given) as site:
        client = await site.dial("SSL", by_tls=True)
        assert await answers(client)
        silent, _ = await site.dial("SSL")
        operator = await site.dial("PLAINTEXT")
        assert await ended(silent) == b""
        for known in (client, operator):
            assert await answers(known)


async def test_strangers_lose_their_bytes_before_others_do(caplog: pytest.LogCaptureFixture) -> None:
    """The largest stranger goes first, although all others have more; only then the largest client."""
    limits = {"network__max_buffered_bytes": 1 << 20, "network__max_request_bytes": 1 << 20}
    async with opened(**limits, topics__max_message_bytes=1 << 19) as site:
        budget = site.server.broker.clients.request_budget
        first, second = [
            await site.dial("SASL_PLAINTEXT", (60_000).to_bytes(4, "big"), bytes(size)) for size in (10_000, 50_000)
        ]
        clients = [await site.dial("PLAINTEXT") for _ in range(5)]
        await comes(lambda: budget.small_bytes >= 60_000)
        for _, writer in clients:
            writer.write((400_000).to_bytes(4, "big") + bytes(198_000))
        assert await ended(second[0]) == b""
        assert caplog.text.count("small requests take") == 1
        await comes(lambda: budget.small_bytes >= 1_000_000)
        assert not first[0].at_eof()
        clients[0][1].write(bytes(150_000))
        assert await ended(first[0]) == b""
        assert await ended(clients[0][0]) == b""


async def test_refusals_of_strangers_do_not_outlive_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known client would be closed for their memory, which that does not free. It has none of the memory itself."""
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 3_600)
    wrong = framed(request(AUTHENTICATE, 2, auth_bytes=bytes(60_000)))
    async with opened(network__max_buffered_bytes=4 << 20, network__max_request_bytes=2 << 20) as site:
        known = await site.log_in()
        known[1].write(framed(request(METADATA, 4, topics=None, allow_auto_topic_creation=False))[:-1])
        for _ in range(8):
            await site.dial("SASL_PLAINTEXT", wrong)
        await comes(lambda: site.server._probe.connections_refused == 4)
        assert len(site.server._kafka.strangers) == 4
        assert 4 * 960_000 < site.server.broker.clients.request_budget.used_bytes < 4 << 20
        known[1].write(bytes(1))
        assert await frame(known[0])


async def test_client_that_asks_too_often_before_it_logs_in_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as site:
        reader, _ = await site.dial("SASL_PLAINTEXT", PING * 17)
        await ended(reader)
        assert "too many requests before the client has authenticated" in caplog.text
        reader, _ = await site.dial("SASL_PLAINTEXT", PING * 14, login("secret"), PING * 20)
        for _ in range(36):
            await frame(reader)


async def test_strangers_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    metadata = framed(request(METADATA, 4, topics=None, allow_auto_topic_creation=False))
    async with opened() as site:
        with caplog.at_level(logging.DEBUG):
            for _ in range(5):
                reader, _ = await site.dial("SASL_PLAINTEXT", metadata)
                await ended(reader)
        lines = [each.levelno for each in caplog.records if "before the client has authenticated" in each.getMessage()]
        assert lines == [logging.WARNING] + [logging.DEBUG] * 4
        assert site.server._probe.connections_refused == 5


async def test_refused_logins_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)
    async with opened() as site:
        for password in ("wrong", "worse"):
            reader, _ = await site.dial("SASL_PLAINTEXT", login(password))
            await ended(reader)
        await site.log_in()
        assert site.server.broker.clients.credentials.refusals.count == 2
