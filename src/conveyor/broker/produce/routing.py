"""The stage `route`: chooses the partition or its inbox for a batch."""

from conveyor.records.batch import BatchHeader
from conveyor.replication.partition import Partition


def route(partition: Partition, header: BatchHeader) -> Partition:
    """Return the inbox if there is one, unless the batch repeats a batch that the topic accepted before it had an
    inbox.

    Raises RequestError (PARTITION_OFFLINE).
    """
    partition.check_online()
    inbox = partition.inbox
    if inbox is None:
        return partition
    inbox.check_online()
    is_new = header.producer_id < 0 or inbox.log.producers.knows(header.producer_id)
    return inbox if is_new or partition.log.producers.find(header) is None else partition
