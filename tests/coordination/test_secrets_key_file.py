"""The secret of a cluster in ZooKeeper, encrypted by a key file: how that begins, and goes on with new keys."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore
from conveyor.broker.metadata.cluster_secret import CLUSTER_SECRET_PATH
from conveyor.kernel.ports import DeleteNode
from tests.coordination.conftest import OpenStore
from tests.coordination.test_serve_on_zookeeper import Rest, error_of
from tests.processes import BrokerProcess

Start = Callable[[int, Path | None], BrokerProcess]

FIRST, SECOND = "0f" * 32, "C0" * 32


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.keys"
    path.write_text(f"{FIRST}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def start(tmp_path: Path, address: str) -> Iterator[Start]:
    """Start a broker, by its number, with a key file or without."""
    with ExitStack() as stack:

        def started(number: int, key_file: Path | None) -> BrokerProcess:
            (tmp_path / str(number)).mkdir(exist_ok=True)
            options = () if key_file is None else ("--set", f"broker.secrets_key_file={key_file}")
            place = tmp_path / str(number) / "data"
            broker = BrokerProcess(place, "--metadata", address, "--node-id", str(number), *options).start()
            stack.callback(broker.end)
            return broker

        yield started


async def content(store: ZookeeperStore) -> bytes:
    node = await store.get(CLUSTER_SECRET_PATH)
    assert node is not None
    return node.value


async def test_brokers_with_the_keys_understand_each_other(
    start: Start, key_file: Path, address: str, open_store: OpenStore
) -> None:
    brokers = [start(1, key_file), start(2, key_file)]
    one, two = map(Rest, brokers)
    store = await open_store(address)
    before = await content(store)
    assert before.startswith(b"encrypted ")
    created = await one.ask("POST", "/topics", {"name": "t", "replicas": 2})
    assert created[0] == 201, created
    await one.publish("first")
    for broker, text, keys in zip(brokers, ("second", "third"), ([FIRST, SECOND], [SECOND, FIRST]), strict=True):
        assert await asyncio.to_thread(broker.stop) == 0
        await asyncio.to_thread(key_file.write_text, "\n".join(keys))
        await asyncio.to_thread(broker.start)
        await two.publish(text)
    after = await content(store)
    assert after.split()[1] != before.split()[1], "another key"
    assert await one.texts() == ["first", "second", "third"]


async def test_secret_of_a_running_cluster_is_encrypted_broker_by_broker(
    start: Start, key_file: Path, address: str, open_store: OpenStore
) -> None:
    plain = start(1, None)
    store = await open_store(address)
    secret = bytes.fromhex((await content(store)).decode())
    two = await asyncio.to_thread(start, 2, key_file)
    assert secret.hex().encode() not in await content(store)
    assert "was not encrypted before: who has read it still knows it" in two.log()
    created = await Rest(two).ask("POST", "/topics", {"name": "t", "replicas": 2})
    assert created[0] == 201, "the broker without the file, which has read the secret before, works on"
    assert await asyncio.to_thread(plain.stop) == 0
    one = await asyncio.to_thread(start, 1, key_file)
    await Rest(one).publish("still")
    assert await Rest(two).texts() == ["still"]
    assert one.log().count("was not encrypted") == 0


def test_broker_without_the_key_does_not_start(start: Start, tmp_path: Path, address: str, key_file: Path) -> None:
    start(1, key_file)
    other = ("--metadata", address, "--node-id", "3", "--data-dir", str(tmp_path / "other"))
    assert error_of(*other).endswith(
        "the secret of the cluster is encrypted: set broker.secrets_key_file to the key file of its other brokers"
    )
    wrong = tmp_path / "wrong.keys"
    wrong.write_text(SECOND)
    refused = error_of(*other, "--set", f"broker.secrets_key_file={wrong}")
    assert "is encrypted with key " in refused
    assert refused.endswith(f"which is not in {wrong}: add that key to the file (broker.secrets_key_file)")
    wrong.write_text(FIRST[:-1])
    assert f"line 1 of {wrong} is no key" in error_of(*other, "--set", f"broker.secrets_key_file={wrong}")


async def test_lost_key_is_replaced_while_all_brokers_are_stopped(
    start: Start, key_file: Path, address: str, open_store: OpenStore
) -> None:
    brokers = [start(1, key_file), start(2, key_file)]
    assert (await Rest(brokers[0]).ask("POST", "/topics", {"name": "t", "replicas": 2}))[0] == 201
    await Rest(brokers[0]).publish("before")
    assert [broker.stop() for broker in brokers] == [0, 0]
    store = await open_store(address)
    await store.commit(DeleteNode(CLUSTER_SECRET_PATH))
    await asyncio.to_thread(key_file.write_text, SECOND)
    for broker in brokers:
        await asyncio.to_thread(broker.start)
    await Rest(brokers[1]).publish("after")
    assert await Rest(brokers[0]).texts() == ["before", "after"]
