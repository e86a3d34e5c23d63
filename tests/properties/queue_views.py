"""Views of a subscription, compared with a model of it: the states of settled messages."""

from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id
from conveyor.queues.delivery.inspection import message_state
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.records.message import Message
from tests.unit.queues.model import QueueModel
from tests.unit.queues.stage import SUBSCRIPTION, Stage


def check_settled_states(stage: Stage, model: QueueModel, *, knows_all: bool) -> None:
    """Check when, and after how many deliveries, messages were settled. knows_all: none of this may be forgotten."""
    for known in model:
        message = stage.source.get(known.offset) if known.settled else None
        if message is None:
            continue
        state = message_state(stage.queue, message, stage.now_ms)
        assert (state.state == "dead") == known.dead
        assert state.settled_ms is not None or not knows_all
        assert state.settled_ms is None or state.settled_ms <= stage.now_ms
        if state.settled_ms is not None and not known.cancelled:
            deliveries = known.failed_before + (state.state == "acknowledged")
            assert state.delivery_count in ([None] if state.state == "dropped" else [deliveries])


def ended_lease(delivery_count: int) -> LeasedMessage:
    """Return the lease of a message that was pending."""
    ack_id = encode_ack_id(SUBSCRIPTION, LeaseId(0, 0, 0, 0))
    return LeasedMessage(ack_id, Message("t", 0, 0, 0, None, None), delivery_count, 0)
