"""Decides which eligible leader replicas a change of `min.insync.replicas` ends.

A replica is eligible because nothing was committed after it left the ISR: the ISR was smaller than it has to be. Once a
lower minimum lets the high watermark rise again, the replica lacks records. The change of the setting and the end of
the ELR are therefore one entry (KIP-966). If a default ends more ELRs than fit in an entry, most end before. An ELR
that ends early only makes fewer replicas eligible.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import bundle_changes, bundle_policy, owners
from conveyor.cluster.controller.image_draft import MOST_BUNDLES
from conveyor.cluster.controller.partition_transition import effective_min_insync
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.settings.tree import Settings


def ended_eligibility(image: ClusterImage, topic: TopicImage, settings: Settings) -> Iterator[Change]:
    """End the ELRs of a topic whose ISRs suffice. topic: with its new settings, and its partitions as in the image."""
    for changes in _ended(image, topic, settings):
        yield from changes


def changed_defaults(
    image: ClusterImage, change: Change, settings: Settings, most_bundles: int = MOST_BUNDLES
) -> list[Change]:
    """Change the defaults of topics, and end the ELRs of all topics whose ISRs suffice. settings: with the change.

    With more than `most_bundles`, only so many of their ELRs end; called again on its result it continues.
    """
    ended = [changes for topic in owners(image) for changes in _ended(image, topic, settings)]
    first = [] if len(ended) > most_bundles else [change]
    return [*first, *chain.from_iterable(ended[:most_bundles])]


def _ended(image: ClusterImage, topic: TopicImage, settings: Settings) -> Iterator[Sequence[Change]]:
    """Yield the changes of each bundle."""
    if not any(partition.elr for partition in topic.partitions):
        return
    min_insync = bundle_policy(topic, settings).min_insync
    for number, partition in enumerate(topic.partitions):
        if partition.elr and len(partition.isr) >= effective_min_insync(partition, min_insync):
            yield list(bundle_changes(image, topic, number, replace(partition, elr=())))
