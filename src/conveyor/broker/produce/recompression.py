"""The stage `recompress`: compresses a batch's records with its topic's `compression.type`."""

from conveyor.records.batch import BatchHeader
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.compression import Unpacked
from conveyor.records.repack import pack_batch, wants_recompression
from conveyor.settings.tree import TopicSettings


def recompress(batch: CheckedBatch, header: BatchHeader, content: Unpacked, topic: TopicSettings) -> CheckedBatch:
    """Return the batch to append: the producer's own, unless records were dropped or the topic demands another codec.

    header, content: the batch after de-duplication, decompressed; if no record was dropped, header is the batch's own.
    Raises RequestError: see `pack_batch`.
    """
    if header is batch.header and not wants_recompression(topic, header):
        return batch
    return pack_batch(header, content, topic)
