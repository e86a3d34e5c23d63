"""The owner of a metadata store keeps the sessions of its clients, whatever they send."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.peers.peer_framing import KEEP_ALIVE, LENGTH
from conveyor.adapters.store_socket import store_calls as calls
from conveyor.adapters.store_socket.served_client import MAX_QUEUED_REQUESTS, MAX_WATCHES
from conveyor.broker.remote.call_frames import Answered, Ask, Refused, Withdraw
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import MetadataStore, PutNode, Versioned
from tests.store_owner import MAX_CLIENTS, StoreOwner
from tests.unit.adapters.store_socket.raw_client import RawClient

LIVE = PutNode("/live", b"", ephemeral=True)
SHORT_MS = 200


@pytest.fixture
async def raw() -> AsyncIterator[RawClient]:
    client = RawClient()
    yield client
    await client.close()


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
    await raw.ask(calls.COMMIT, [LIVE])
    store = await store_owner.connect()
    await raw.close()
    await until_gone(store)
    await store.close()


async def test_a_silent_client_loses_its_session_and_an_idle_one_keeps_it(tmp_path: Path, raw: RawClient) -> None:
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    idle = await owner.connect()
    await idle.commit(PutNode("/idle", b"", ephemeral=True))
    await raw.greet(owner.path)
    await raw.ask(calls.COMMIT, [LIVE])
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
    """Without a greeting."""
    owner = await StoreOwner(tmp_path, SHORT_MS).start()
    await raw.open(owner.path)
    ended = asyncio.ensure_future(raw.ended())
    while not ended.done():
        raw.send_bytes(KEEP_ALIVE)
        await asyncio.sleep(SHORT_MS / 10_000)
    await owner.stop()


async def test_connections_without_greeting_keep_no_worker_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    await raw.ask(calls.COMMIT, [LIVE])
    server = owner.server
    assert server._check is not None
    server._check.cancel()
    now_s = asyncio.get_running_loop().time()
    (client,) = server._clients
    client.channel.heard_s = now_s - 10
    server._check_due_s = now_s - 9
    server._check_silence(SHORT_MS / 1000)
    assert await raw.ask(calls.GET, calls.Read("/live", is_watched=False)) is not None
    await owner.stop()


async def test_the_last_session_of_a_client_has_ended_before_its_next_begins(
    store_owner: StoreOwner, raw: RawClient
) -> None:
    """Though its first connection is still open."""
    welcome = await raw.greet(store_owner.path)
    assert welcome is not None
    await raw.ask(calls.COMMIT, [LIVE])
    again = RawClient()
    await again.greet(store_owner.path, previous=welcome.session)
    assert await again.ask(calls.GET, calls.Read("/live", is_watched=False)) is None
    await raw.ended()
    await again.close()


async def test_the_event_of_a_watch_follows_the_reply_that_has_set_it(store_owner: StoreOwner, raw: RawClient) -> None:
    """Whatever another client commits meanwhile."""
    store = await store_owner.connect()
    await raw.greet(store_owner.path)
    for number in range(1, 50):
        call_id = raw.send(calls.GET, calls.Read("/a", is_watched=True))
        await store.commit(PutNode("/a", b""))
        answer = await raw.receive()
        assert isinstance(answer, Answered)
        assert answer.call_id == call_id
        found = calls.GET.decode_reply(answer.payload)
        if found is not None and found.version == number:  # The read was later than the commit.
            await store.commit(PutNode("/b", b""))
            raw.send(calls.COMMIT, [PutNode("/a", b"", number)])
            assert await raw.receive() == Answered(call_id, b"")
            await raw.receive()
            await store.commit(PutNode("/c", b""))
            return
        assert await raw.receive() == Answered(call_id, b"")
    await store.close()


async def test_a_client_with_another_key_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.open(store_owner.path)
    assert await raw.ask(calls.GREET, calls.Greeting("guessed", 0)) is None
    await raw.ended()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(LENGTH.pack(calls.MAX_REQUEST_BYTES + 1), id="too long"),
        pytest.param(LENGTH.pack(1) + b"\xc1", id="not MessagePack"),
        pytest.param(LENGTH.pack(2) + b"\x91\x63", id="unknown tag"),
        pytest.param(LENGTH.pack(4) + b"\x94\x01\x07\x08", id="wrong types"),
        pytest.param(LENGTH.pack(5) + b"\x95\x01\x07\xa1\xff", id="not UTF-8"),
        pytest.param(LENGTH.pack(2_003) + b"\x95\x01\x07" + b"\x91" * 2_000, id="deep"),
    ],
)
async def test_bytes_that_are_no_message_end_only_their_connection(
    store_owner: StoreOwner, raw: RawClient, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = await store_owner.connect()
    await raw.greet(store_owner.path)
    await raw.ask(calls.COMMIT, [LIVE])
    raw.send_bytes(content)
    await raw.ended()
    await until_gone(store)
    await store.close()
    assert "connection to the metadata store closed reason=" in caplog.text


@pytest.mark.parametrize(
    "frame",
    [
        Ask(7, calls.GET.name, 0, b"\xc1", None),
        Ask(7, calls.GET.name, 0, calls.SYNC.encode_request(None), None),
        Ask(7, calls.COMMIT.name, 0, b"\x91\x92\x09\xa1a", None),
        Withdraw(1),
    ],
)
async def test_call_that_the_owner_cannot_read_ends_only_its_connection(
    store_owner: StoreOwner, raw: RawClient, frame: Ask | Withdraw
) -> None:
    store = await store_owner.connect()
    await raw.greet(store_owner.path)
    await raw.ask(calls.COMMIT, [LIVE])
    raw.send_frame(frame)
    await raw.ended()
    await until_gone(store)
    await store.close()


async def test_call_that_the_owner_does_not_know_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    raw.send_frame(Ask(7, "of a later version", 0, b"\xc0", None))
    refused = await raw.receive()
    assert isinstance(refused, Refused)
    assert refused.error.kind == "UNSUPPORTED_VERSION"
    assert await raw.ask(calls.COMMIT, [LIVE]) == (1,)
    assert await raw.ask(calls.TREE, "/") == {"/live": Versioned(b"", 1)}


async def test_an_answer_that_is_too_large_fails_its_call_only(
    store_owner: StoreOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_owner.connect()
    await store.commit(PutNode("/a", bytes(1_000)))
    with monkeypatch.context() as patch:
        patch.setattr(calls.TREE, "_max_bytes", 900)
        with pytest.raises(StorageFailure, match="at most 900 fit"):
            await store.tree("/")
    assert len(await store.tree("/")) == 1
    await store.close()


async def test_a_call_before_the_greeting_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.open(store_owner.path)
    raw.send(calls.COMMIT, [LIVE])
    await raw.ended()
    store = await store_owner.connect()
    assert await store.get("/live") is None
    await store.close()


async def test_a_second_greeting_is_refused(store_owner: StoreOwner, raw: RawClient) -> None:
    welcome = await raw.greet(store_owner.path)
    assert welcome is not None
    raw.send(calls.GREET, calls.Greeting("", welcome.session))
    await raw.ended()


async def test_requests_of_a_client_are_limited(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    for _ in range(3 * MAX_QUEUED_REQUESTS):
        raw.send(calls.SYNC, None)
    await raw.ended()


async def test_watches_of_a_client_are_limited(store_owner: StoreOwner, raw: RawClient) -> None:
    await raw.greet(store_owner.path)
    (client,) = store_owner.server._clients
    client._watches_count = MAX_WATCHES
    raw.send(calls.GET, calls.Read("/a", is_watched=True))
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
    await raw.ask(calls.COMMIT, [LIVE])
    connection = store_owner.tree._connection
    connection.execute("PRAGMA query_only=1")
    await raw.close()
    await raw.ended()
    store = await store_owner.connect()
    assert await store.get("/live") is not None
    connection.execute("PRAGMA query_only=0")
    await until_gone(store)
    await store.close()
