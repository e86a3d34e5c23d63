"""Decides on a broker's controlled shutdown: others lead its bundles before it stops.

The broker sends the request until nothing changes; it may still lead the bundles in which no other replica is in the
ISR. It stays in their ISR, and its leadership ends when it is fenced. A stopping broker joins no ISR (KIP-841,
KAFKA-14140). Its next registration ends the state.
"""

from dataclasses import replace

import msgspec

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.image_draft import MOST_BUNDLES, ImageDraft
from conveyor.cluster.controller.registrations import check_broker_epoch
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId
from conveyor.settings.tree import Settings


class ShutdownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A broker is about to stop."""

    node_id: NodeId
    broker_epoch: int


def stopping_broker(
    image: ClusterImage, request: ShutdownRequest, settings: Settings, most_bundles: int = MOST_BUNDLES
) -> list[Change]:
    """Mark a broker as stopping, move its leaderships, and take it out of ISRs that have another live member.

    Raises RequestError: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    broker = check_broker_epoch(image, request.node_id, request.broker_epoch)
    draft = ImageDraft(image, settings, most_bundles)
    draft.put_broker(replace(broker, is_stopping=True))
    draft.settle_all(may_be_unclean=False)
    return draft.changes()
