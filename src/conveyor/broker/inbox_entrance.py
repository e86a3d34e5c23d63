"""What is asked of a batch that goes into an inbox, so that its records can lie in the topic when they are due."""

from conveyor.kernel.ports import Bytes
from conveyor.log.batch import check_batch
from conveyor.log.records import check_keys
from conveyor.replication.partition import Partition


def way_in(topic: Partition, inbox: Partition, batch: Bytes) -> Partition:
    """The partition to append a batch to: the inbox, unless it repeats what came into the topic before there was one.

    The inbox itself checks sizes, timestamps and sequences, by the topic's settings. Raises RequestError.
    """
    topic.check_online()
    header = check_batch(batch, topic.log.topic.max_message_bytes)
    if "compact" in topic.log.topic.cleanup_policy:
        check_keys(batch)
    is_new = header.producer_id < 0 or inbox.log.producers.knows(header.producer_id)
    return inbox if is_new or topic.log.producers.find(header) is None else topic
