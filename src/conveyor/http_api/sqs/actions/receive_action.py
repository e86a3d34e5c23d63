"""ReceiveMessage: leases messages, and waits for the first one if asked to."""

from typing import Any

from conveyor.http_api.requests.lease_requests import LeaseOptions, LeaseTaking
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.messages.message_view import MessageView
from conveyor.http_api.sqs.protocols.message_operations import ReceiveMessageRequest, ReceiveMessageResult
from conveyor.http_api.sqs.queues.queue_attribute_rules import VISIBILITY_TIMEOUT, WAIT_TIME
from conveyor.http_api.sqs.queues.stored_queue import attribute_of
from conveyor.http_api.sqs.sqs_errors import SqsError, invalid_parameter
from conveyor.queues.queue_commands import LeasedMessage

_MAX_MESSAGES, _MAX_WAIT_S, _MAX_VISIBILITY_S = 10, 20, 43_200


def receive_message(call: ActionCall[ReceiveMessageRequest]) -> None:
    """Lease messages. The answer has those that are available at once, or the first that arrive in time."""
    members, queue = call.members, call.queue()
    count = 1 if members.max_number_of_messages is None else members.max_number_of_messages
    if not 1 <= count <= _MAX_MESSAGES:
        raise _out_of_range("MaxNumberOfMessages", count, "Must be between 1 and 10, if provided.")
    wait_s = members.wait_time_seconds
    if wait_s is None:
        wait_s = int(attribute_of(queue, WAIT_TIME))
    if not 0 <= wait_s <= _MAX_WAIT_S:
        raise _out_of_range("WaitTimeSeconds", wait_s, "Must be >= 0 and <= 20, if provided.")
    visibility_s = members.visibility_timeout
    if visibility_s is not None and not 0 <= visibility_s <= _MAX_VISIBILITY_S:
        raise _out_of_range(VISIBILITY_TIMEOUT, visibility_s, "Must be between 0 and 43200, if provided.")
    view = MessageView(
        queue=queue,
        topics=call.broker.metadata.image.topics,
        region=call.settings.region,
        system_names=frozenset((*(members.attribute_names or ()), *(members.message_system_attribute_names or ()))),
        attribute_names=members.message_attribute_names or (),
    )
    view.check()

    def show(leases: list[LeasedMessage]) -> Any:
        return call.form.write(ReceiveMessageResult(messages=view.show_all(leases) or None))

    visibility_ms = None if visibility_s is None else 1000 * visibility_s
    options = LeaseOptions(queue.name, count, 1000 * wait_s, visibility_ms)
    LeaseTaking(call.http, options, show, lambda: call.check_rights(is_noted=False)).take(call.responder)


def _out_of_range(name: str, value: int, reason: str) -> SqsError:
    return invalid_parameter(f"Value {value} for parameter {name} is invalid. Reason: {reason}")
