"""A broker on a served store is sure of its place only while the owner answers, and loses it when it is silent."""

import asyncio
import threading
from pathlib import Path
from uuid import uuid4

from conveyor.adapters.store_socket.socket_store import SocketStore
from conveyor.adapters.system_clock import SystemClock
from conveyor.broker.metadata.broker_session import BrokerSession, registration_path
from conveyor.broker.tasks import Tasks
from conveyor.cluster.controller.registrations import Registration
from conveyor.kernel.ids import NodeId
from tests.store_owner import StoreOwner

TIMEOUT_MS = 300


def registration() -> Registration:
    return Registration(
        node_id=NodeId(1),
        host="",
        port=1,
        rack="",
        incarnation="",
        broker_epoch=0,
        boot_id="",
        data_id="",
    )


async def until_sure(session: BrokerSession, holds_lease: bool) -> None:
    while session.holds_lease() is not holds_lease:  # noqa: ASYNC110 - it is a function of time
        await asyncio.sleep(0.005)


async def session_on(store: SocketStore, clock: SystemClock) -> BrokerSession:
    session = BrokerSession(store, clock, uuid4, Tasks(lambda _: None))
    await session.start(registration())
    return session


async def test_a_broker_whose_owner_does_not_answer_is_not_sure(tmp_path: Path) -> None:
    """As while the supervisor is stopped. Its registration is still there afterwards, and the broker sure again."""
    owner = await StoreOwner(tmp_path, TIMEOUT_MS).start()
    store, clock = await owner.connect(), SystemClock(asyncio.get_running_loop())
    session = await session_on(store, clock)
    assert session.holds_lease()
    incarnation = session.incarnation
    answer = threading.Event()
    owner.tree._thread.submit(answer.wait)
    await until_sure(session, False)
    answer.set()
    await until_sure(session, True)
    assert session.incarnation == incarnation
    await session.close()
    await store.close()
    clock.close()
    await owner.stop()


async def test_a_broker_that_was_silent_registers_again(tmp_path: Path) -> None:
    """As after SIGSTOP and SIGCONT: before it does anything else, it is not sure, and its old node is gone."""
    owner = await StoreOwner(tmp_path, TIMEOUT_MS).start()
    store, clock = await owner.connect(), SystemClock(asyncio.get_running_loop())
    observer = await owner.connect()
    session = await session_on(store, clock)
    lost, was_sure = asyncio.Event(), []
    session.lost.listen(lambda _: was_sure.append(session.holds_lease()))
    session.lost.listen(lambda _: lost.set())
    first = session.incarnation
    node = registration_path(registration()).removesuffix(".") + f".{first}"
    gone = asyncio.Event()
    assert await observer.get(node, gone.set) is not None
    for client in owner.server._clients:
        if client.session is not None and client.session.number == store._session:
            client.channel.abort()  # What the owner does with a silent client; see test_store_server.
    await gone.wait()
    await lost.wait()
    assert was_sure == [False]
    await until_sure(session, True)
    assert session.incarnation != first
    await session.close()
    await store.close()
    await observer.close()
    clock.close()
    await owner.stop()
