"""Questions to coordinators whether a transaction is open, while a batch waits to begin it in a partition.

The answer may be old when it arrives: the transaction may have ended, and the partition may have its marker already. A
batch appended then would belong to no transaction, or stay open for ever (KAFKA-14884). A marker therefore voids the
verifications of its producer in its partition, and so does a change of the leader: another leader may have appended
markers.
"""

from conveyor.kernel.ids import TopicPartition
from conveyor.replication.partition import Partition


class Verification:
    """One question. The answer permits an append only while the verification is valid.

    uses_count: the batches that are to be appended because of the answer.
    """

    def __init__(self, partition: Partition, producer_id: int) -> None:
        self.partition = partition
        self.producer_id = producer_id
        self._leader_epoch = partition.term.epoch
        self.is_void = False
        self.uses_count = 0

    @property
    def is_valid(self) -> bool:
        return not self.is_void and self.partition.term.epoch == self._leader_epoch


class Verifications:
    """The verifications of this broker that were begun and not ended."""

    def __init__(self) -> None:
        self._begun: dict[tuple[TopicPartition, int], set[Verification]] = {}

    def begin(self, partition: Partition, producer_id: int) -> Verification:
        verification = Verification(partition, producer_id)
        self._begun.setdefault((partition.identity, producer_id), set()).add(verification)
        return verification

    def end(self, verification: Verification) -> None:
        """Forget a verification; it is void from now on."""
        verification.is_void = True
        place = verification.partition.identity, verification.producer_id
        others = self._begun.get(place, set())
        others.discard(verification)
        if not others:
            self._begun.pop(place, None)

    def ended(self, partition: TopicPartition, producer_id: int) -> None:
        """Void the verifications of a producer whose transaction ends in a partition."""
        for verification in self._begun.pop((partition, producer_id), ()):
            verification.is_void = True
