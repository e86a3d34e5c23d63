"""SendMessage and SendMessageBatch. The answer is sent when the messages are durable."""

from collections.abc import Sequence
from typing import Any

from conveyor.broker.produce.message_batches import Result
from conveyor.http_api.sqs.actions.batch_results import divide
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.content.batch_entries import check_entry_ids
from conveyor.http_api.sqs.content.message_text import check_batch_bytes, message_bytes
from conveyor.http_api.sqs.content.sqs_message_ids import encode_sqs_message_id, sequence_number
from conveyor.http_api.sqs.messages.fifo_ids import check_batch_ids
from conveyor.http_api.sqs.messages.message_intake import Intake, take_in
from conveyor.http_api.sqs.protocols.message_operations import (
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageRequest,
    SendMessageResult,
)
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name
from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import Subscription


def send_message(call: ActionCall[SendMessageRequest]) -> None:
    """Publish a message."""
    queue = call.queue()
    intake = take_in(queue, call.members, call.http.exchange.request.header(b"x-amzn-trace-id"))
    if call.http.exchange.meter is not None:
        call.http.count_published([intake.outgoing])

    def made(results: Sequence[Result]) -> SendMessageResult:
        (published,) = results
        if isinstance(published, RequestError):
            raise published
        return SendMessageResult(**_sent(queue, intake, published.partition, published.offset))

    messages = call.broker.produce.messages
    messages.submit(call.http.caller, queue.topic, [intake.outgoing], lambda answer: call.reply(answer, make=made))


def send_message_batch(call: ActionCall[SendMessageBatchRequest]) -> None:
    """Publish messages. Each has its own result."""
    queue, entries = call.queue(), call.members.entries
    check_entry_ids((entry.id for entry in entries), "SendMessageBatchRequestEntry")
    check_batch_bytes(sum(message_bytes(entry.message_body, entry.message_attributes) for entry in entries))
    if is_fifo_name(queue.name):
        check_batch_ids(queue, entries)
    intakes = [_intake(queue, entry) for entry in entries]
    valid = [intake.outgoing for intake in intakes if isinstance(intake, Intake)]
    if call.http.exchange.meter is not None:
        call.http.count_published(valid)

    def made(published: Sequence[Result]) -> SendMessageBatchResult:
        left = iter(published)
        results = [
            intake if isinstance(intake, RequestError) else _entry(queue, entry, intake, next(left))
            for entry, intake in zip(entries, intakes, strict=True)
        ]
        successful, failed = divide(entries, results)
        return SendMessageBatchResult(successful=successful, failed=failed)

    messages = call.broker.produce.messages
    messages.submit(call.http.caller, queue.topic, valid, lambda answer: call.reply(answer, make=made))


def _intake(queue: Subscription, entry: SendMessageBatchRequestEntry) -> Intake | RequestError:
    try:
        return take_in(queue, entry)
    except RequestError as error:
        return error.detached()


def _entry(
    queue: Subscription, entry: SendMessageBatchRequestEntry, intake: Intake, published: Result
) -> SendMessageBatchResultEntry | RequestError:
    if isinstance(published, RequestError):
        return published
    return SendMessageBatchResultEntry(id=entry.id, **_sent(queue, intake, published.partition, published.offset))


def _sent(queue: Subscription, intake: Intake, partition: int, offset: int) -> dict[str, Any]:
    return {
        "message_id": encode_sqs_message_id(queue.topic_id, partition, offset),
        "md5_of_body": intake.body_digest,
        "md5_of_attributes": intake.attributes_digest,
        "md5_of_system_attributes": intake.system_digest,
        "sequence_number": sequence_number(offset) if is_fifo_name(queue.name) else None,
    }
