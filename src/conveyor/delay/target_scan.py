"""Finds in the target's log how far the last intent of a forwarder was carried out.

The forwarder is the only writer with its producer id, and all batches of the intent are at or above the intent's
`target_offset`. So the last batch of that producer there tells by its sequences how many offsets are in the target.
The headers are in the log as long as the batches: the scan does not depend on the memory for producers, which is
limited and expires. Compaction keeps the last batch of a producer, at least its header.

Only if the target has deleted records above `target_offset` since, which takes a deletion within the second in which an
intent is in doubt, the target's memory of the producer decides, if its last batch there is of the intent. Without
it, the records count as not forwarded: they may be forwarded twice, but none is lost.
"""

from conveyor.delay.forwarding_records import PRODUCER_EPOCH, SEQUENCES, Intent
from conveyor.log.batch_reading import batches_between
from conveyor.log.log import Log
from conveyor.records.batch import CONTROL


def carried_out(intent: Intent, target: Log) -> int:
    """Return how many offsets of an intent are in the target's log. Blocks. Raises StorageFailure.

    The caller ensures that the log is committed up to its end, that no replica has more which may be elected, and that
    no other forwarder appends.
    """
    if not intent.ranges:
        return 0
    last_sequence = None
    for header, _, _ in batches_between(target, intent.target_offset, target.written_offset):
        is_of_producer = (header.producer_id, header.producer_epoch) == (intent.producer_id, PRODUCER_EPOCH)
        is_of_intent = is_of_producer and header.base_offset >= intent.target_offset
        if is_of_intent and not header.attributes & CONTROL:
            last_sequence = (header.base_sequence + header.last_offset_delta) % SEQUENCES
    if last_sequence is None and target.log_start_offset > intent.target_offset:
        remembered = target.producers.remembered(intent.producer_id).last_batch
        if remembered is not None and remembered.base_offset >= intent.target_offset:
            last_sequence = remembered.last_sequence
    if last_sequence is None:
        return 0
    # More than the intent has, or less than nothing, only after an unclean election that took intents away.
    carried_out = (last_sequence - intent.sequence) % SEQUENCES + 1
    return min(intent.count, carried_out) if carried_out <= SEQUENCES // 2 else 0
