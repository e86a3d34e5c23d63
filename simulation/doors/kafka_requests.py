"""The requests of clients over Kafka's protocol. Every function raises Disconnected; most raise RequestError, too.

Versions are the newest ones that name topics, unless a function says otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from conveyor.broker.produce.publisher import ACKS_ALL
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.records.batch import BatchHeader, batch_is_intact, iterate_batches
from conveyor.records.record import Record, decode_records
from simulation.doors.kafka_link import Watch
from simulation.ledger import Place

EARLIEST, LATEST = -2, -1
BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2

_KINDS: dict[int, ErrorKind] = {}
for _kind, _codes in ERRORS.items():
    _KINDS.setdefault(_codes.kafka_code, _kind)
_READ_BYTES = 1 << 16
_TIMEOUT_MS = 8_000
_NO_GENERATION = -1
_OPERATIONS = {Operation.SET: 0, Operation.DELETE: 1, Operation.APPEND: 2, Operation.SUBTRACT: 3}


class SpeaksKafka(Protocol):
    """One client's way to one broker."""

    async def kafka(self, api_key: int, version: int, body: Mapping[str, Any], watch: Watch | None = None) -> Any:
        """Ask the broker. Returns kio's response. Raises Disconnected."""
        ...


class SpeaksOfRecords(SpeaksKafka, Protocol):
    """The same, for requests whose acknowledgements are checked."""

    def acknowledgements(self, topic: str, numbers: Sequence[int]) -> Watch:
        """Return a watch that checks the acknowledgement of batches for these partitions."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedAt:
    """The outcome of one batch."""

    error: RequestError | None
    base_offset: int


@dataclass(frozen=True, slots=True)
class FetchedFrom:
    """The result of one fetch from a partition. content: whole batches."""

    error: RequestError | None
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    aborted: Sequence[tuple[int, int]]
    """Producer ids with the first offsets of their aborted transactions."""
    content: bytes

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        for position, header in iterate_batches(self.content):
            yield header, self.content[position : position + header.size]

    def records(self, start: int) -> list[Record]:
        """Return the records from an offset on, before the first damaged batch: clients compare checksums."""
        intact = takewhile(lambda found: batch_is_intact(found[1]), self.batches())
        found = [record for header, batch in intact if header.records_count for record in decode_records(batch)]
        return [record for record in found if record.offset >= start]


class TopicShown(NamedTuple):
    """A topic as one broker shows it. leaders: the epoch and the leader of each partition."""

    topic_id: UUID
    leaders: Mapping[int, tuple[LeaderEpoch, NodeId]]


class Transactional(NamedTuple):
    """The transaction of a batch. adds: the batch may be the first one of its partition."""

    transactional_id: str
    adds: bool


async def show_topic(door: SpeaksKafka, topic: str) -> TopicShown:
    """Ask for the leaders of a topic (Metadata)."""
    asked = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
    response = await door.kafka(3, 12, asked | {"include_topic_authorized_operations": False})
    (shown,) = response.topics
    check_code(shown.error_code)
    leaders = {
        partition.partition_index: (LeaderEpoch(partition.leader_epoch), NodeId(partition.leader_id))
        for partition in shown.partitions
    }
    return TopicShown(shown.topic_id, leaders)


async def publish(
    door: SpeaksOfRecords,
    topic: str,
    batches: Sequence[tuple[int, bytes]],
    acks: int = ACKS_ALL,
    transaction: Transactional | None = None,
) -> Sequence[PublishedAt]:
    """Publish to partitions of a topic (Produce). Errors are values."""
    body = {
        "transactional_id": None if transaction is None else transaction.transactional_id,
        "acks": acks,
        "timeout": _TIMEOUT_MS,
        "topic_data": [{"name": topic, "partition_data": [_produced(*batch) for batch in batches]}],
    }
    watch = None if transaction is not None else door.acknowledgements(topic, [number for number, _ in batches])
    version = 12 if transaction is None or transaction.adds else 11
    response = await door.kafka(0, version, body, watch)
    return [published_at(partition) for partition in response.responses[0].partition_responses]


async def publish_to_id(door: SpeaksOfRecords, topic: str, topic_id: UUID, partition: int, batch: bytes) -> PublishedAt:
    """Publish to a partition of the topic with this id, which had the name when the client last heard of it."""
    body = {
        "transactional_id": None,
        "acks": ACKS_ALL,
        "timeout": _TIMEOUT_MS,
        "topic_data": [{"topic_id": topic_id, "partition_data": [_produced(partition, batch)]}],
    }
    response = await door.kafka(0, 13, body, door.acknowledgements(topic, [partition]))
    return published_at(response.responses[0].partition_responses[0])


def produce_body(topic: str, partition: int, batch: bytes, acks: int) -> dict[str, Any]:
    """Return a request that publishes one batch."""
    data = [{"name": topic, "partition_data": [_produced(partition, batch)]}]
    return {"transactional_id": None, "acks": acks, "timeout": _TIMEOUT_MS, "topic_data": data}


def published_at(partition: Any) -> PublishedAt:
    """Return what a response of Produce says about one partition."""
    return PublishedAt(error_of(partition.error_code, partition.error_message), partition.base_offset)


async def fetch(
    door: SpeaksKafka,
    place: Place,
    start: int,
    *,
    wait_ms: int = 0,
    epoch: int = -1,
    max_bytes: int = _READ_BYTES,
    reads_committed: bool = False,
) -> FetchedFrom:
    """Read a partition from an offset on, as much as one fetch returns. epoch: the leader epoch that the client knows.

    An error is a value.
    """
    body = fetch_body(place, start, wait_ms=wait_ms, epoch=epoch, max_bytes=max_bytes, reads_committed=reads_committed)
    return _fetched(await door.kafka(1, 12, body))


def fetch_body(
    place: Place,
    start: int,
    *,
    wait_ms: int = 0,
    epoch: int = -1,
    max_bytes: int = _READ_BYTES,
    reads_committed: bool = False,
) -> dict[str, Any]:
    """Return a request that reads one partition by the name of its topic; see `fetch`."""
    topic = {"topic": place[0], "partitions": [_wanted(place[1], start, epoch, max_bytes)]}
    return _fetch_of(topic, wait_ms, max_bytes, reads_committed=reads_committed)


async def fetch_from_id(door: SpeaksKafka, topic_id: UUID, partition: int, start: int) -> FetchedFrom:
    """Read a partition of the topic with this id."""
    topic = {"topic_id": topic_id, "partitions": [_wanted(partition, start, -1, _READ_BYTES)]}
    return _fetched(await door.kafka(1, 17, _fetch_of(topic, 0, _READ_BYTES)))


async def list_offset(door: SpeaksKafka, place: Place, timestamp: int, epoch: int) -> int:
    """Return the first or the end offset of a partition (ListOffsets)."""
    wanted = {"partition_index": place[1], "current_leader_epoch": epoch, "timestamp": timestamp}
    topics = [{"name": place[0], "partitions": [wanted]}]
    response = await door.kafka(2, 8, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    (partition,) = response.topics[0].partitions
    check_code(partition.error_code)
    return int(partition.offset)


async def delete_records(door: SpeaksKafka, place: Place, offset: int, timeout_ms: int) -> None:
    """Delete the records of a partition below an offset (DeleteRecords)."""
    topics = [{"name": place[0], "partitions": [{"partition_index": place[1], "offset": offset}]}]
    response = await door.kafka(21, 2, {"topics": topics, "timeout": timeout_ms})
    check_code(response.topics[0].partitions[0].error_code)


async def new_producer_id(door: SpeaksKafka) -> int:
    """Get the id of an idempotent producer (InitProducerId)."""
    return (await init_producer(door, None, 60_000, None)).producer_id


async def init_producer(
    door: SpeaksKafka, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None
) -> ProducerIdentity:
    """Get the identity of a producer. expected: its former one, if it wants to go on after a failure (KIP-360)."""
    body = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
    known = {"producer_id": -1, "producer_epoch": -1} if expected is None else expected._asdict()
    response = await door.kafka(22, 5, body | known)
    check_code(response.error_code)
    return identity_of(response)


async def commit_offset(
    door: SpeaksKafka, group: str, place: Place, offset: int, member: tuple[str, int] = ("", _NO_GENERATION)
) -> None:
    """Commit an offset of a group (OffsetCommit). member: its id, and its generation or epoch."""
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": member[1],
        "member_id": member[0],
        "group_instance_id": None,
        "topics": [committed_position(place, offset)],
    }
    response = await door.kafka(8, 9, body)
    check_code(response.topics[0].partitions[0].error_code)


async def committed_offset(door: SpeaksKafka, group: str, place: Place, *, is_stable: bool = False) -> int:
    """Return the committed offset of a group, -1 if there is none (OffsetFetch)."""
    asked = {"name": place[0], "partition_indexes": [place[1]]}
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": [asked]}]
    response = await door.kafka(9, 9, {"groups": groups, "require_stable": is_stable})
    check_code(response.groups[0].error_code)
    (found,) = response.groups[0].topics[0].partitions
    check_code(found.error_code)
    return int(found.committed_offset)


async def find_coordinator(door: SpeaksKafka, key_type: int, key: str) -> NodeId:
    """Return the coordinator of a group (0) or a transactional id (1)."""
    response = await door.kafka(10, 6, {"key_type": key_type, "coordinator_keys": [key]})
    (found,) = response.coordinators
    check_code(found.error_code, found.error_message)
    return NodeId(found.node_id)


async def create_topic(door: SpeaksKafka, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> UUID:
    """Create a topic. Returns its id."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in config.items()],
    }
    response = await door.kafka(19, 7, {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": False})
    (created,) = response.topics
    check_code(created.error_code, created.error_message)
    return UUID(int=created.topic_id.int)


async def delete_topic(door: SpeaksKafka, topic_id: UUID) -> None:
    """Delete the topic with this id."""
    response = await door.kafka(20, 6, {"topics": [{"name": None, "topic_id": topic_id}], "timeout": _TIMEOUT_MS})
    check_code(response.responses[0].error_code, response.responses[0].error_message)


async def grow_topic(door: SpeaksKafka, name: str, partitions: int) -> None:
    """Give a topic so many partitions (CreatePartitions)."""
    topic = {"name": name, "count": partitions, "assignments": None}
    response = await door.kafka(37, 3, {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": False})
    check_code(response.results[0].error_code, response.results[0].error_message)


async def change_config(door: SpeaksKafka, resource: tuple[int, str], change: ConfigChange) -> None:
    """Change a setting of a topic, of a broker or, without a name, of all brokers (IncrementalAlterConfigs)."""
    config = {"name": change.name, "config_operation": _OPERATIONS[change.operation], "value": change.value}
    changed = {"resource_type": resource[0], "resource_name": resource[1], "configs": [config]}
    response = await door.kafka(44, 1, {"resources": [changed], "validate_only": False})
    check_code(response.responses[0].error_code, response.responses[0].error_message)


async def elect_leaders(door: SpeaksKafka, places: Iterable[Place], *, is_unclean: bool) -> None:
    """Elect the preferred leaders of partitions, or uncleanly any replica (ElectLeaders). Errors are not reported."""
    topics = [{"topic": topic, "partitions": [number]} for topic, number in places]
    await door.kafka(43, 2, {"election_type": int(is_unclean), "topic_partitions": topics, "timeout": _TIMEOUT_MS})


async def reassign(door: SpeaksKafka, place: Place, target: Sequence[NodeId] | None) -> None:
    """Give a partition other replicas, or cancel that. Errors are not reported (AlterPartitionReassignments)."""
    topics = [{"name": place[0], "partitions": [{"partition_index": place[1], "replicas": target}]}]
    await door.kafka(45, 1, {"topics": topics, "timeout": _TIMEOUT_MS, "allow_replication_factor_change": True})


def error_of(code: Any, message: str | None = None) -> RequestError | None:
    """Return the error of a code. Kinds with the same code are one for a client."""
    number = int(code)
    kind = _KINDS.get(number, ErrorKind.UNKNOWN_SERVER_ERROR)
    return None if number == 0 else RequestError(kind, message or f"error {kind.name.lower()}")


def check_code(code: Any, message: str | None = None) -> None:
    """Raise the error of a code, unless it is that of a success."""
    error = error_of(code, message)
    if error is not None:
        raise error


def _produced(partition: int, batch: bytes) -> dict[str, Any]:
    return {"index": partition, "records": batch}


def _wanted(partition: int, start: int, epoch: int, max_bytes: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "current_leader_epoch": epoch,
        "fetch_offset": start,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }


def _fetch_of(
    topic: Mapping[str, Any], wait_ms: int, max_bytes: int, *, reads_committed: bool = False
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": int(reads_committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [topic],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _fetched(response: Any) -> FetchedFrom:
    (found,) = response.responses[0].partitions
    aborted = [(int(one.producer_id), int(one.first_offset)) for one in found.aborted_transactions or ()]
    return FetchedFrom(
        error_of(found.error_code),
        found.high_watermark,
        found.log_start_offset,
        found.last_stable_offset,
        aborted,
        bytes(found.records or b""),
    )


def committed_position(place: Place, offset: int) -> dict[str, Any]:
    """Return the topic of a request that commits one offset."""
    position = {
        "partition_index": place[1],
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {"name": place[0], "partitions": [position]}


def identity_of(response: Any) -> ProducerIdentity:
    """Return the identity in a response."""
    return ProducerIdentity(ProducerId(int(response.producer_id)), ProducerEpoch(int(response.producer_epoch)))
