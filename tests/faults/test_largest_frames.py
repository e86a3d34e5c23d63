"""The largest frame of the smallest items, for every API and every array of its requests.

The items are counted before one of them is decoded, memory is weighed by them, and no turn of the event loop does more
than a slice of the work. Work is counted in calls of functions, on the event loop and in threads, and nothing is timed.
To compare two names is a call, too, so that a search of a list for a name counts for its length.

With ALL_FRAMES in the environment, requests with as many items as permitted also name what exists, and what does not.
"""

import asyncio
import os
import sys
import tracemalloc
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.acls import MAX_ACLS
from conveyor.cluster.changes import AclAdded
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.registry import HANDLERS
from conveyor.kafka_api.wire.codec import decode_body
from conveyor.kafka_api.wire.connection import ITEM_BYTES
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import ANONYMOUS
from conveyor.kernel.errors import ProtocolViolation
from conveyor.settings.tree import NetworkSettings
from tests.callers import CALLER
from tests.faults.largest_frames import Path, Values, array_paths, frame, smallest
from tests.unit.broker.parts import BATCH, propose, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import request, response

ALL_FRAMES = "ALL_FRAMES" in os.environ
MOST_ITEMS = NetworkSettings().max_request_items
ITEMS = 1_000
"""The limit in most of these tests: some slices."""

CALLS_PER_TURN = 65_000
"""Of Python functions, and of C functions by them, in one turn of the event loop: each takes 0.1 to 0.2 us."""

CALLS_PER_ITEM_AT_ONCE = 8
"""In one turn: to merge, to join, to choose what a fetch reads, or to do all of a request that is not divided."""

CALLS_PER_REMOVED_ACL = 20
"""In one turn: a request removes all that it means, or none."""

CALLS_PER_ITEM = 800
"""In all turns and threads together: the most expensive items change the cluster's metadata."""

OTHER_JOBS = 10
"""Given to threads, beside one for each slice: to encode, to write metadata, to flush."""

NAMES = frozenset(
    "name topic topic_name resource_name groups groups_names group_ids group_id member_id coordinator_keys topic_names"
    " transactional_ids subscribed_topic_names configuration_keys path entity_name feature".split()
)
NUMBERS = frozenset(("partition", "partition_index", "index", "partitions", "partition_indexes", "partition_numbers"))
FIXED = {"acks": -1, "records": BATCH, "resource_type": 2, "entity_type": "user", "election_type": 0}


def arrays() -> Iterator[Any]:
    """Yield all arrays of the newest versions, and of the oldest versions those that are not in the newest."""
    for api in SERVED_APIS.values():
        newest = list(array_paths(load_request_schema(api.key, api.max_version)))
        oldest = array_paths(load_request_schema(api.key, api.min_version))
        for path in dict.fromkeys([*newest, *oldest]):
            version = api.max_version if path in newest else api.min_version
            yield pytest.param(api.key, version, path, id=f"{api.key}-v{version}-{'-'.join(path)}")


ARRAYS = list(arrays())


def known(topic_id: UUID) -> Values:
    """The names of what exists, again and again."""

    def value(field: str, _number: int) -> Any:
        if field in NAMES:
            return "t"
        return topic_id if field == "topic_id" else 0 if field in NUMBERS else FIXED.get(field)

    return value


def distinct(field: str, number: int) -> Any:
    """Another name for each item, of something that does not exist."""
    if field in NAMES:
        return f"n{number}"
    return UUID(int=number + 1) if field == "topic_id" else number if field in NUMBERS else FIXED.get(field)


class Name(str):
    """A name of a request. Python sees a call where it is compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return self


def with_names(value: Any) -> Any:
    """Make each string of a request a `Name`."""
    if type(value) is str:
        return Name(value)
    if isinstance(value, tuple):
        return tuple(map(with_names, value))
    if is_dataclass(value):
        for field in fields(value):
            object.__setattr__(value, field.name, with_names(getattr(value, field.name)))
    return value


class Counted:
    """Calls: those of the callback of the event loop that made most, those of all callbacks, and those of the jobs of
    threads.
    """

    def __init__(self) -> None:
        self.most = self.total = self._calls = 0
        self.where = ""
        self.jobs: list[int] = []

    def profile(self, _frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def run(self, run: Callable[[Handle], None], handle: Handle) -> None:
        self._calls = 0
        run(handle)
        self.total += self._calls
        if self._calls > self.most:
            self.most, self.where = self._calls, repr(handle)

    def job(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run work in a thread, whose calls are those of its job."""
        calls = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            return work(*arguments)
        finally:
            sys.setprofile(None)
            self.jobs.append(calls)

    def decode(self, *arguments: Any) -> Any:
        """Decode a request, with a `Name` for each string. To make them does not count."""
        request, profile = decode_body(*arguments), sys.getprofile()
        sys.setprofile(None)
        try:
            return with_names(request)
        finally:
            sys.setprofile(profile)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted, run, submit = Counted(), Handle._run, ThreadPoolExecutor.submit

    def submit_counted(threads: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return submit(threads, counted.job, work, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Handle, "_run", lambda handle: counted.run(run, handle))
        patched.setattr(ThreadPoolExecutor, "submit", submit_counted)
        patched.setattr("conveyor.kafka_api.wire.long_request.decode_body", counted.decode)
        sys.setprofile(counted.profile)
        try:
            yield counted
        finally:
            sys.setprofile(None)


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[MemoryClient]:
    """Yield a client of a broker with a topic `t` and a coordinator of each kind. The parameter is the limit."""
    settings = {
        "network.max_request_items": getattr(request, "param", ITEMS), "broker.auto_create_topics": False,
        "groups.offsets_partitions": 1, "transactions.state_partitions": 1,
    }  # fmt: skip
    async with running_parts(settings) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=4))
        client = MemoryClient(broker)
        for key_type in (0, 1):
            await client.ask(10, 4, key_type=key_type, coordinator_keys=("t",))
        yield client


async def exchange(client: MemoryClient, content: bytes) -> None:
    """Send a request, and return once it is answered or its connection is refused."""
    try:
        client.send(content)
        async with asyncio.timeout(120):
            while not client.connection.is_idle and not client.failures:  # noqa: ASYNC110 - nothing tells that it is
                await asyncio.sleep(0.01)  # Each look makes calls, which count: not one in each turn.
    except ProtocolViolation as violation:
        client.failures.append(str(violation))


def limits() -> Iterator[Any]:
    """Yield limits with their bounds, and the values of the items. Those of the default limit take minutes."""
    for values in ("smallest", "known", "distinct"):
        yield pytest.param(ITEMS, CALLS_PER_TURN, values, id=f"{values}-some slices")
        if values == "smallest" or ALL_FRAMES:
            bound = CALLS_PER_ITEM_AT_ONCE * MOST_ITEMS
            yield pytest.param(MOST_ITEMS, bound, values, id=f"{values}-default limit")


@pytest.mark.parametrize(("client", "calls_per_turn", "values"), list(limits()), indirect=["client"])
@pytest.mark.parametrize(("api_key", "version", "path"), ARRAYS)
async def test_work_does_not_grow_faster_than_its_items(
    client: MemoryClient,
    calls_per_turn: int,
    api_key: int,
    version: int,
    path: Path,
    values: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few items, no turn does more than a slice. With as many as permitted, that is true of pieces only."""
    topic_id = client.broker.metadata.image.topics["t"].topic_id
    items = client.broker.settings.network.max_request_items
    by_name: dict[str, Values] = {"smallest": smallest, "known": known(topic_id), "distinct": distinct}
    content = frame(api_key, version, path, items, by_name[values])
    with counting(monkeypatch) as counted:
        await exchange(client, content)
    assert counted.most < calls_per_turn, counted.where
    assert counted.total + sum(counted.jobs) < CALLS_PER_ITEM * items
    assert len(counted.jobs) < OTHER_JOBS + items // SLICE_ITEMS
    assert not [reason for reason in client.failures if "bug" in reason]
    assert client.failures or not client.connection.buffered_bytes


@pytest.mark.parametrize(("count", "partitions"), [(1, 900), (60, 100)])
async def test_all_offsets_of_few_groups_are_fetched_in_slices_and_encoded_in_a_thread(
    client: MemoryClient, count: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has few items, and its answer has many."""
    await client.broker.topics.create(CALLER, TopicRequest(name="wide", partitions=partitions))
    offsets = tuple(
        {"partition_index": number, "committed_offset": 0, "committed_metadata": ""} for number in range(partitions)
    )
    groups = [f"g{number}" for number in range(count)]
    for group in groups:
        topics = ({"name": "wide", "partitions": offsets},)
        await client.ask(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
    asked = tuple({"group_id": group, "topics": None} for group in groups)
    content = request(9, 8, groups=asked, require_stable=False)
    with counting(monkeypatch) as counted:
        asyncio.get_running_loop().call_soon(client.send, content)
        answer = await client.answers.get()
    fetched = response(9, 8, answer).groups
    assert [len(group.topics[0].partitions) for group in fetched] == [len(offsets)] * len(groups)
    assert counted.most < CALLS_PER_TURN, counted.where
    assert len(counted.jobs) == 1


async def test_acls_are_found_and_removed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a cluster may have, which short requests are compared with."""
    kinds = PatternType.LITERAL, "User:u", "*", AclOperation.READ, Permission.ALLOW
    acls = [AclAdded(acl=Acl(ResourceType.TOPIC, f"t{number}", *kinds)) for number in range(MAX_ACLS)]
    numbers = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1)
    wanted: dict[str, Any] = {"resource_name_filter": None, "principal_filter": None, "host_filter": None} | numbers
    named = [wanted | {"resource_name_filter": f"t{number}", "pattern_type_filter": 2} for number in range(40)]
    async with running_parts({"access.enabled": True, "access.super_users": str(ANONYMOUS)}) as broker:
        client = MemoryClient(broker)
        await propose(broker, *acls)
        for content, most in (
            (request(29, 3, **wanted), CALLS_PER_TURN),
            (request(31, 3, filters=named), CALLS_PER_TURN),
            (request(31, 3, filters=[wanted]), CALLS_PER_REMOVED_ACL * MAX_ACLS),
        ):
            with counting(monkeypatch) as counted:
                await exchange(client, content)
            assert counted.most < most, counted.where
            assert not client.failures
        assert not broker.metadata.image.acls


@pytest.mark.parametrize(("api_key", "version", "path"), ARRAYS)
async def test_one_item_more_is_refused_before_any_is_decoded(
    client: MemoryClient, api_key: int, version: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr("conveyor.kafka_api.wire.long_request.decode_body", lambda *_: decoded.append(_))
    monkeypatch.setitem(HANDLERS, api_key, decoded.append)
    await exchange(client, frame(api_key, version, path, ITEMS + 1))
    limit = f"more than {ITEMS} items or KiB of text (network.max_request_items)"
    assert [limit in reason for reason in client.failures] == [True]
    assert not decoded


@pytest.mark.parametrize(("api_key", "version", "path"), ARRAYS)
async def test_request_takes_no_more_memory_than_is_weighed(
    client: MemoryClient, api_key: int, version: int, path: Path
) -> None:
    """All objects of the request, of its work and of the response are traced."""
    content = frame(api_key, version, path, ITEMS, distinct)
    await exchange(client, frame(api_key, version, path, ITEMS // 2, distinct))  # What is loaded on first use.
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await exchange(client, content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    fixed = 2 * len(content) + 500_000
    assert peak - before < fixed + ITEMS * ITEM_BYTES
