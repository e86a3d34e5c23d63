"""A compacted topic in which a client puts and deletes the values of a few keys. All brokers compact it often.

Invariants, by the names that failures report:

    ReplicasAgree        all replicas have the same latest value of each key, also after an unclean election
    LatestSurvives       each replica has each key's latest acknowledged value or a later one; a deleted key has none.
                         A replica that missed a tombstone would show the deleted value as soon as it leads
"""

from collections.abc import Iterable

from conveyor.broker.broker_node import BrokerNode
from conveyor.log.batch_reading import batches_between
from conveyor.records.record import decode_records, encode_batch
from conveyor.replication.partition import Partition
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import publish
from simulation.ledger import InvariantBroken, LogLedger
from simulation.story_schedule import Step
from simulation.story_topics import TABLE_TOPIC

_KEYS = 6
_PLACE = (TABLE_TOPIC, 0)


class TableWriter:
    """See the module's docstring. A change without a reply may have happened or not: the client makes the next one."""

    def __init__(self, ledger: LogLedger, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._counts = counts
        self._count = 0
        self._changes: dict[bytes, list[bytes | None]] = {}
        """Of each key: the latest acknowledged value, or None if it was deleted, and the changes since."""

    async def execute(self, step: Step, door: ClientDoor) -> None:
        self._counts.note(step.action)
        now_ms, first = door.clock.now_ms(), step.number % _KEYS
        keys = [b"%d" % (key % _KEYS) for key in range(first, first + 1 + step.number // _KEYS % 3)]
        value = None if step.action == "delete_keys" else b"%d" % self._count
        self._count += 1
        for key in keys:
            self._changes.setdefault(key, [None]).append(value)
        batch = encode_batch([(now_ms, key, value, ()) for key in keys])
        try:
            (published,) = await publish(await door.leader(_PLACE), TABLE_TOPIC, [(0, batch)])
        except Disconnected:
            return
        if published.error is None:
            for key in keys:
                self._changes[key] = [value]

    def check_end(self, nodes: Iterable[BrokerNode]) -> None:
        """Check the logs of all replicas, once the cluster has settled."""
        tables = {
            broker.settings.broker.node_id: _latest(partition)
            for broker in nodes
            if (partition := broker.partitions.table.get(*_PLACE)) is not None
        }
        if any(table != next(iter(tables.values())) for table in tables.values()):
            raise InvariantBroken("ReplicasAgree", f"the latest values of the keys: {tables}")
        if self._ledger.of(_PLACE).is_excused:
            return
        for node_id, found in tables.items():
            for key, changes in self._changes.items():
                if found.get(key) not in changes:
                    detail = f"broker {node_id}: key {key!r} has {found.get(key)!r}"
                    raise InvariantBroken("LatestSurvives", f"{detail}, and not one of {changes}")


def _latest(partition: Partition) -> dict[bytes, bytes]:
    """Return the latest value of each key that is not deleted."""
    log = partition.log
    latest = {
        record.key: record.value
        for batch in batches_between(log, log.log_start_offset, log.log_end_offset)
        for record in decode_records(batch.content)
        if record.key is not None
    }
    return {key: value for key, value in latest.items() if value is not None}
