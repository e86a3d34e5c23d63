"""Decides which eligible leader replicas a change of `min.insync.replicas` ends.

A replica is eligible because nothing was committed after it left the ISR: the ISR was smaller than it has to be. Once a
lower minimum lets the high watermark rise again, the replica lacks records. The change of the setting and the end of
the ELR are therefore one entry (KIP-966).
"""

from collections.abc import Iterator

from msgspec.structs import replace

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import bundle_changes, bundle_policy, owners
from conveyor.cluster.controller.partition_transition import effective_min_insync
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.settings.tree import Settings


def ended_eligibility(image: ClusterImage, topic: TopicImage, settings: Settings) -> Iterator[Change]:
    """End the ELRs of a topic whose ISRs suffice. topic: with its new settings, and its partitions as in the image."""
    if not any(partition.elr for partition in topic.partitions):
        return
    min_insync = bundle_policy(topic, settings).min_insync
    for number, partition in enumerate(topic.partitions):
        if partition.elr and len(partition.isr) >= effective_min_insync(partition, min_insync):
            yield from bundle_changes(image, topic, number, replace(partition, elr=()))


def ended_eligibilities(image: ClusterImage, settings: Settings) -> Iterator[Change]:
    """End the ELRs of all topics whose ISRs suffice. settings: with the new defaults."""
    for topic in owners(image):
        yield from ended_eligibility(image, topic, settings)
