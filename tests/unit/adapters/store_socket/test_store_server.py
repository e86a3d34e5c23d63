"""The owner of a metadata store keeps the sessions of its clients, whatever they send."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.peers.peer_framing import KEEP_ALIVE, LENGTH
from conveyor.adapters.store_socket import store_frames as frames
from conveyor.adapters.store_socket.served_client import MAX_QUEUED_REQUESTS, MAX_WATCHES
from conveyor.kernel.ports import MetadataStore, PutNode
from tests.store_owner import MAX_CLIENTS, StoreOwner
from tests.unit.adapters.store_socket.raw_client import RawClient

LIVE = PutNode("/live", b"", ephemeral=True)
SHORT_MS = 200


@pytest.fixture
async def raw() -> AsyncIterator[RawClient]:
    client = RawClient()
    yield client
    await client.close()


def live(number: int) -> frames.CommitNodes:
    return frames.CommitNodes(number, frames.to_wire([LIVE]))


async def until_gone(store: MetadataStore) -> None:
    """Wait until the ephemeral node is gone."""
    changed = asyncio.Event()
    while await store.get("/live", changed.set) is not None:
        await changed.wait()
        changed.clear()


def test_only_this_user_can_open_the_socket(store_owner: StoreOwner) -> None:
    assert stat.S_IMODE(store_owner.path.stat().st_mode) == 0o600


async def test_the_end_of_a_connection_ends_its_session(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    await raw.ask(live(1))
    store = await store_owner.connect()
    await raw.close()
    await until_gone(store)
    await store.close()


async def test_a_silent_client_loses_its_session_and_an_idle_one_keeps_it(tmp_path: Path, raw: RawClient) -> None:
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    idle = await owner.connect()
    await idle.commit(PutNode("/idle", b"", ephemeral=True))
    await raw.greet(owner.path)
    await raw.ask(live(1))
    await until_gone(idle)
    await raw.ended()
    assert await idle.get("/idle") is not None
    await idle.close()
    await owner.stop()


async def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, raw: RawClient) -> None:
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    await raw.open(owner.path)
    await raw.ended()
    await owner.stop()


async def test_a_client_that_only_keeps_its_connection_alive_is_disconnected(tmp_path: Path, raw: RawClient) -> None:
    """Without Hello."""
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    await raw.open(owner.path)
    ended = asyncio.ensure_future(raw.ended())
    while not ended.done():
        raw.send_bytes(KEEP_ALIVE)
        await asyncio.sleep(SHORT_MS / 10_000)
    await owner.stop()


async def test_connections_without_hello_keep_no_worker_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = await StoreOwner(tmp_path, 600_000).start()
    strangers = [await RawClient().open(owner.path) for _ in range(MAX_CLIENTS)]
    store = await owner.connect()
    await strangers[0].ended()
    strangers += [await RawClient().open(owner.path) for _ in range(3)]
    for ended in strangers[1:3]:
        await ended.ended()
    assert len([record for record in caplog.records if "refused" in record.message]) == 1
    for stranger in strangers:
        await stranger.close()
    await store.close()
    await owner.stop()


async def test_a_pause_of_the_owner_is_not_the_silence_of_its_clients(tmp_path: Path, raw: RawClient) -> None:
    """The check that comes too late gives each client another timeout."""
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    await raw.greet(owner.path)
    await raw.ask(live(1))
    server = owner.server
    assert server._check is not None
    server._check.cancel()
    now_s = asyncio.get_running_loop().time()
    (client,) = server._clients
    client.channel.heard_s = now_s - 10
    server._check_due_s = now_s - 9
    server._check_silence(SHORT_MS / 1000)
    assert isinstance(await raw.ask(frames.GetNode(2, "/live", is_watched=False)), frames.NodeReply)
    await owner.stop()


async def test_the_last_session_of_a_client_has_ended_before_its_next_begins(
    store_owner: StoreOwner, raw: RawClient
) -> None:
    """Though its first connection is still open."""
    welcome = await raw.greet(store_owner.path)
    assert isinstance(welcome, frames.Welcome)
    await raw.ask(live(1))
    again = RawClient()
    await again.greet(store_owner.path, previous=welcome.session)
    assert await again.ask(frames.GetNode(1, "/live", is_watched=False)) == frames.NodeReply(1, None, 0)
    await raw.ended()
    await again.close()


async def test_the_event_of_a_watch_follows_the_reply_that_has_set_it(store_owner: StoreOwner, raw: RawClient) -> None:
    """Whatever another client commits meanwhile."""
    store = await store_owner.connect()
    await raw.greet(store_owner.path)
    for number in range(1, 50):
        raw.send(frames.GetNode(number, "/a", is_watched=True))
        await store.commit(PutNode("/a", b""))
        reply = await raw.receive()
        assert isinstance(reply, frames.NodeReply)
        if reply.version == number:  # The read was later than the commit.
            await store.commit(PutNode("/b", b""))
            raw.send(frames.CommitNodes(1000 + number, frames.to_wire([PutNode("/a", b"", number)])))
            assert await raw.receive() == frames.WatchFired(number)
            await raw.receive()
            await store.commit(PutNode("/c", b""))
            return
        assert await raw.receive() == frames.WatchFired(number)
    await store.close()


async def test_a_client_with_another_key_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.open(store_owner.path)
    assert await raw.ask(frames.Hello("guessed", 0)) == frames.Unwelcome()
    await raw.ended()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(LENGTH.pack(frames.MAX_REQUEST_BYTES + 1), id="too long"),
        pytest.param(LENGTH.pack(1) + b"\xc1", id="not MessagePack"),
        pytest.param(LENGTH.pack(2) + b"\x91\x63", id="unknown tag"),
        pytest.param(LENGTH.pack(4) + b"\x94\x01\x07\x08", id="wrong types"),
        pytest.param(LENGTH.pack(5) + b"\x93\x03\x07\xa1\xff", id="not UTF-8"),
        pytest.param(LENGTH.pack(2_003) + b"\x93\x06\x07" + b"\x91" * 2_000, id="deep"),
    ],
)
async def test_bytes_that_are_no_message_end_only_their_connection(
    store_owner: StoreOwner, raw: RawClient, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = await store_owner.connect()
    await raw.greet(store_owner.path)
    await raw.ask(live(1))
    raw.send_bytes(content)
    await raw.ended()
    await until_gone(store)
    await store.close()
    assert "connection to the metadata store closed reason=" in caplog.text


async def test_a_request_before_hello_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.open(store_owner.path)
    raw.send(live(1))
    await raw.ended()
    store = await store_owner.connect()
    assert await store.get("/live") is None
    await store.close()


async def test_a_second_hello_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    welcome = await raw.greet(store_owner.path)
    assert isinstance(welcome, frames.Welcome)
    raw.send(frames.Hello("", welcome.session))
    await raw.ended()


async def test_requests_of_a_client_are_limited(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    raw.send(*(frames.SyncStore(number) for number in range(1, 3 * MAX_QUEUED_REQUESTS)))
    await raw.ended()


async def test_watches_of_a_client_are_limited(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    (client,) = store_owner.server._clients
    client._watches_count = MAX_WATCHES
    raw.send(frames.GetNode(1, "/a", is_watched=True))
    await raw.ended()


async def test_connections_are_limited(store_owner: StoreOwner, raw: RawClient) -> None:
    stores = [await store_owner.connect() for _ in range(MAX_CLIENTS)]
    await raw.open(store_owner.path)
    await raw.ended()
    await stores[0].close()
    while len(store_owner.server._clients) == MAX_CLIENTS:  # noqa: ASYNC110 - the owner tells nobody
        await asyncio.sleep(0)
    stores[0] = await store_owner.connect()
    for store in stores:
        await store.close()


async def test_a_session_that_cannot_be_ended_now_is_ended_later(store_owner: StoreOwner, raw: RawClient) -> None:
    """As while another program holds a lock on the file, or the disk is full."""
    await raw.greet(store_owner.path)
    await raw.ask(live(1))
    connection = store_owner.tree._connection
    connection.execute("PRAGMA query_only=1")
    await raw.close()
    await raw.ended()
    store = await store_owner.connect()
    assert await store.get("/live") is not None
    connection.execute("PRAGMA query_only=0")
    await until_gone(store)
    await store.close()
