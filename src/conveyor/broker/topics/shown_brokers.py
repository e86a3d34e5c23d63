"""The brokers whose addresses Kafka clients get: the live ones, and for a short time those that have died.

librdkafka drops a broker that Metadata no longer lists, and with it the leaders that the same answer has named for this
broker's partitions; it asks for them again a second later. A broker that died therefore stays listed until its clients
have turned to the new leaders. A broker that was stopped has handed its partitions over before.
"""

from conveyor.broker.services import Services
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.kernel.ids import NodeId

SHOWN_AFTER_DEATH_MS = 10_000


class ShownBrokers:
    def __init__(self, services: Services) -> None:
        self._metadata = services.metadata
        self._clock = services.clock
        self._shown_until_ms: dict[NodeId, int] = {}
        services.metadata.listen(self._observe)

    def listed(self) -> list[BrokerImage]:
        """Return the brokers of the newest image that are shown."""
        image = self._metadata.image
        if not self._shown_until_ms:
            return image.live_brokers
        now_ms, until_ms = self._clock.steady_ms(), self._shown_until_ms
        return [
            broker
            for broker in image.brokers.values()
            if not broker.is_fenced or now_ms < until_ms.get(broker.node_id, now_ms)
        ]

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.brokers is new.brokers:
            return
        now_ms = self._clock.steady_ms()
        self._shown_until_ms = {node: until_ms for node, until_ms in self._shown_until_ms.items() if now_ms < until_ms}
        for broker in new.brokers.values():
            before = old.brokers.get(broker.node_id)
            if broker.is_fenced and before is not None and not before.is_fenced and not before.is_stopping:
                self._shown_until_ms[broker.node_id] = now_ms + SHOWN_AFTER_DEATH_MS
