"""The promise of the audit to who reads it.

Invariants, by the names that failures report:

    DenialsAreAudited    `__audit` has at the end each refusal that a client has seen, unless the process that refused
                         has ended, or counts decisions that it has dropped, or `__audit` may have lost records
"""

import asyncio
import json
from collections import Counter
from typing import NamedTuple

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import AUDIT_TOPIC
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.log.batch_reading import batches_between
from conveyor.records.record import decode_records
from simulation.clients.users.user_promises import Right
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.ledger import InvariantBroken

_WRITTEN_WITHIN_S = 60.0
_LOOKS_EACH_S = 1.0
_PLACE = TopicPartition(AUDIT_TOPIC, 0)


class _Refusal(NamedTuple):
    """A refusal by one broker, as the audit shows it."""

    broker: int
    principal: str
    operation: str
    resource: str


class AuditPromise:
    """See the module's docstring."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._seen: dict[BrokerNode, Counter[_Refusal]] = {}
        """By the process that has refused."""

    def refused(self, node: BrokerNode | None, right: Right) -> None:
        """Note that a client has seen a refusal by a process."""
        if node is not None:
            refusal = _Refusal(node.settings.broker.node_id, f"User:{right.user}", right.operation.value, right.topic)
            self._seen.setdefault(node, Counter())[refusal] += 1

    async def check_the_end(self, _: ClientDoor) -> None:
        """Wait until the audit has all refusals. All brokers run."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _WRITTEN_WITHIN_S
        while missing := self._missing():
            if loop.time() > ends_s:
                raise InvariantBroken("DenialsAreAudited", f"{AUDIT_TOPIC} has no records of {dict(missing)}")
            await asyncio.sleep(_LOOKS_EACH_S)

    def _missing(self) -> Counter[_Refusal]:
        """Return the refusals that have to be in the audit, and are not."""
        if self._cluster.replicas.is_excused(_PLACE):
            return Counter()
        seen: Counter[_Refusal] = Counter()
        for node in self._cluster.nodes:
            audit = node.clients.access.audit
            if audit is not None and not audit.dropped.total():
                seen += self._seen.get(node, Counter())
        return seen - self._written()

    def _written(self) -> Counter[_Refusal]:
        written: Counter[_Refusal] = Counter()
        leader = self._cluster.tree.image.partition(*_PLACE)
        node = None if leader is None else self._cluster.brokers[NodeId(leader.leader)].node
        partition = None if node is None else node.partitions.table.get(*_PLACE)
        if partition is None:
            return written
        for batch in batches_between(partition.log, 0, partition.term.high_watermark):
            for record in decode_records(batch.content):
                event = json.loads(record.value or b"")
                if not event["allowed"]:
                    refusal = _Refusal(event["broker"], event["principal"], event["operation"], event["resource"])
                    written[refusal] += event["count"]
        return written
