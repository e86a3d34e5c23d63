"""Views of a subscription, compared with a model: the states of settled messages, and the list of the withheld ones."""

from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id
from conveyor.queues.delivery.inspection import message_state
from conveyor.queues.delivery.scheduled import ScheduledSearch
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


def check_scheduled(stage: Stage, model: QueueModel) -> None:
    """Check the list of messages that are withheld: it is complete once all are scanned."""
    now_ms = stage.now_ms
    search = ScheduledSearch(stage.queue, (now_ms + 1, -1), 1_000)
    with search.begun():
        while not search.go_on():
            pass
    found = {(listed.offset, listed.due_ms, listed.delivery_count) for listed in search.found()}
    withheld = {
        (known.offset, known.retry_ms if known.deliveries else known.due_ms, known.deliveries)
        for known in model
        if known.is_open and not known.is_due(now_ms) and known.lease is None and known.pending is None
    }
    start = stage.source.log_start_offset
    found = {message for message in found if message[0] >= start}
    assert found == withheld if search.is_complete(stage.messages.term.high_watermark) else found <= withheld


def ended_lease(delivery_count: int) -> LeasedMessage:
    """Return the lease of a message that was pending."""
    ack_id = encode_ack_id(SUBSCRIPTION, LeaseId(0, 0, 0, 0))
    return LeasedMessage(ack_id, Message("t", 0, 0, 0, None, None), delivery_count, 0)
