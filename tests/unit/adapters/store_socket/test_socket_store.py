"""The client of a served metadata store: what it does when the connection ends, and when the owner has."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from conveyor.adapters.store_socket import socket_store
from conveyor.adapters.store_socket.socket_store import OwnerGone, SocketStore
from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import PutNode, SessionState
from tests.store_owner import StoreOwner

TOO_LARGE = PutNode("/a", bytes(1 << 20))


def states_of(store: SocketStore) -> list[str]:
    """What the store's listeners see, and a watch of /a."""
    seen: list[str] = []
    store.listen(lambda state: seen.append(state.name))
    return seen


async def until_connected(store: SocketStore) -> None:
    """Wait for the next connection."""
    connected = asyncio.Event()
    store.listen(lambda state: connected.set() if state is SessionState.CONNECTED else None)
    await connected.wait()


async def until_gone(owner: StoreOwner, store: SocketStore) -> StorageFailure:
    """Use the store until the owner is gone for it; return the failure."""
    while not owner.gone:
        with contextlib.suppress(StorageFailure):
            await store.sync()
    with pytest.raises(StorageFailure, match="its owner has ended"):
        await store.sync()
    (failure,) = owner.gone
    return failure


def cancel(requests: Iterable["asyncio.Future[None]"]) -> None:
    for request in requests:
        request.cancel()


def cut(owner: StoreOwner) -> None:
    """End all connections."""
    for client in owner.server._clients:
        client.channel.abort()


async def test_a_lost_connection_begins_a_new_session(store_owner: StoreOwner) -> None:
    store = await store_owner.connect()
    seen = states_of(store)
    await store.commit(PutNode("/live", b"", ephemeral=True), PutNode("/kept", b""))
    await store.get("/kept", lambda: seen.append("watch"))
    cut(store_owner)
    await until_connected(store)
    assert seen == ["SUSPENDED", "watch", "LOST", "CONNECTED"]
    assert list(await store.tree("/")) == ["/kept"]
    await store.commit(PutNode("/kept", b""))
    assert seen[4:] == []
    await store.close()


async def test_a_request_in_flight_fails_with_its_connection_and_the_next_one_waits(store_owner: StoreOwner) -> None:
    store = await store_owner.connect()
    pending = asyncio.ensure_future(store.sync())
    await asyncio.sleep(0)
    cut(store_owner)
    with pytest.raises(StorageFailure, match="the connection to its owner was lost"):
        await pending
    await store.sync()
    await store.close()


async def test_an_owner_that_has_ended_is_gone(tmp_path: Path) -> None:
    owner = await StoreOwner(tmp_path).start()
    store = await owner.connect()
    await owner.stop()
    assert isinstance(await until_gone(owner, store), OwnerGone)
    await store.close()


async def test_another_owner_at_the_same_place_is_not_ours(tmp_path: Path) -> None:
    """A second supervisor has started already when the process of the first one notices its death."""
    first = await StoreOwner(tmp_path).start()
    store = await first.connect()
    second = StoreOwner(tmp_path, key="another")
    await second.start()
    cut(first)
    assert "another one listens" in str(await until_gone(first, store))
    await store.close()
    await first.stop()
    await second.stop()


async def test_a_store_that_nobody_serves_cannot_be_opened(tmp_path: Path) -> None:
    store = SocketStore(tmp_path / "nothing", "", lambda _: None)
    with pytest.raises(OwnerGone, match="no process listens at "):
        await store.open()
    await store.close()


async def test_an_owner_that_does_not_answer_fails_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_store, "_GREETING_LIMIT_S", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        store = SocketStore(tmp_path / "silent", "", lambda _: None)
        with pytest.raises(StorageFailure, match="its owner does not answer"):
            await store.open()
        await store.close()


async def test_a_request_that_takes_too_long_fails_and_a_later_one_succeeds(
    store_owner: StoreOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_owner.connect()
    with monkeypatch.context() as patch:
        patch.setattr(socket_store, "_LONGEST_REQUEST_S", 0.0)
        with pytest.raises(StorageFailure, match="its owner has not answered for"):
            await store.commit(PutNode("/a", b""))
    await store.sync()
    assert not store._pending
    await store.close()


async def test_a_commit_that_is_too_large_is_refused(store_owner: StoreOwner) -> None:
    store = await store_owner.connect()
    with pytest.raises(StorageFailure, match="above the limit of 1048576"):
        await store.commit(TOO_LARGE)
    assert await store.commit(PutNode("/a", bytes(900 << 10))) == (1,)
    await store.close()


async def test_a_full_disk_is_told_from_other_failures(store_owner: StoreOwner) -> None:
    store = await store_owner.connect()
    pages = store_owner.tree._connection.execute("PRAGMA page_count").fetchone()[0]
    store_owner.tree._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DiskFull):
        await store.commit(PutNode("/a", bytes(900 << 10)))
    store_owner.tree._connection.execute("PRAGMA query_only=1")
    with pytest.raises(StorageFailure, match="readonly") as failure:
        await store.commit(PutNode("/a", b""))
    assert not isinstance(failure.value, DiskFull)
    await store.close()


async def test_a_request_that_is_cancelled_as_it_fails_leaves_no_unseen_exception(store_owner: StoreOwner) -> None:
    """The loop's exception handler of a broker would take one for a bug."""
    store, unseen = await store_owner.connect(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    requests = [asyncio.ensure_future(store.sync())]
    store.listen(lambda _: cancel(requests))
    await asyncio.sleep(0)
    cut(store_owner)
    await until_connected(store)
    assert requests.pop().cancelled()
    await store.close()
    assert unseen == []
