"""Requests that run in a transaction: publish messages for several topics and acknowledge others, all or none."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.settlements import MAX_TARGETS
from conveyor.broker.transaction_requests.transaction_request import Acknowledgement, TopicMessage, TransactionRequest
from conveyor.cluster.quotas import PRODUCER_BYTE_RATE
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.rest.publish_endpoints import (
    MAX_MESSAGES,
    NewMessage,
    Receipt,
    batch_limit,
    batch_reader,
    free,
    outgoing_messages,
    weigh,
)
from conveyor.http_api.rest.settlement_endpoints import ONE_OF, Targets, names_leases, targets_of
from conveyor.kernel.access.declared_access import READ, WRITE, group, to_create, topic
from conveyor.kernel.errors import ErrorKind, RequestError

_Name = Annotated[str, Meta(min_length=1)]
_RequestId = Annotated[str, Meta(min_length=1, max_length=200)]
_MAX_SUBSCRIPTIONS = 100


class NewTopicMessage(NewMessage, kw_only=True):
    """One message of a batch for several topics."""

    topic: _Name


class NewTopicMessages(Struct, forbid_unknown_fields=True):
    """A batch of messages for several topics."""

    messages: Annotated[list[NewTopicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class NewAcknowledgement(Targets, kw_only=True):
    """Messages to acknowledge for a subscription: exactly one of the four other fields."""

    subscription: _Name


class NewTransaction(Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages and acknowledgements that count all together or not at all. id: chosen by the client; a repeated request
    with the same id returns the response of the first one.
    """

    id: _RequestId | None = None
    messages: Annotated[list[NewTopicMessage], Meta(max_length=MAX_MESSAGES)] = []
    acknowledge: Annotated[list[Annotated[NewAcknowledgement, ONE_OF]], Meta(max_length=_MAX_SUBSCRIPTIONS)] = []


class Receipts(Struct):
    """The positions of the messages, in the order of the request."""

    results: list[Receipt]


class AcknowledgedMessages(Struct, omit_defaults=True):
    """The messages that are settled, as the request has named them."""

    subscription: str
    ack_ids: list[str] | None = None
    message_ids: list[str] | None = None


class CommittedTransaction(Struct):
    """The positions of the messages, in the order of the request, and the acknowledged messages."""

    id: str | None
    results: list[Receipt]
    acknowledged: list[AcknowledgedMessages]


async def run_transaction(call: HttpCall[NoQuery, NewTransaction]) -> CommittedTransaction:
    """Publish messages for several topics and acknowledge others: all of them, or none.

    The response is an error if any message is refused; nothing is then published or acknowledged. A request with an id
    can be repeated: it is executed once.
    """
    body = call.body
    acknowledgements = [Acknowledgement(one.subscription, targets_of(one)) for one in body.acknowledge]
    if not (body.messages or acknowledgements):
        raise _wrong("give at least one of `messages` and `acknowledge`")
    count = sum(len(acknowledgement.targets) for acknowledgement in acknowledgements)
    if count > MAX_TARGETS:
        raise _wrong(f"`acknowledge` names {count} messages: at most {MAX_TARGETS} at once")
    results = await _executed(call, body.id, body.messages, acknowledgements)
    return CommittedTransaction(body.id, results, [_acknowledged(one) for one in body.acknowledge])


async def publish_all_or_none(call: HttpCall[NoQuery, NewTopicMessages]) -> Receipts:
    """Publish a batch of messages for several topics: all of them, or none.

    The response is an error if any message is refused; no message is then published.
    """
    return Receipts(await _executed(call, None, call.body.messages, []))


_PUBLISH = (topic(WRITE, "body.messages.topic"), to_create("body.messages.topic"))
_ACKNOWLEDGED = "body.acknowledge.subscription"

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/messages:batch",
        needs=_PUBLISH,
        function=publish_all_or_none,
        body_limit=batch_limit,
        read=batch_reader(NewTopicMessages),
        problems=(404, 409, 504, 507),
        quotas=(PRODUCER_BYTE_RATE,),
    ),
    Endpoint(
        method="POST",
        path="/transactions",
        needs=(*_PUBLISH, group(READ, _ACKNOWLEDGED), topic(READ, f"{_ACKNOWLEDGED}.topic")),
        function=run_transaction,
        body_limit=batch_limit,
        read=batch_reader(NewTransaction),
        problems=(404, 409, 422, 504, 507),
        quotas=(PRODUCER_BYTE_RATE,),
    ),
)


async def _executed(
    call: HttpCall[Any, Any],
    request_id: str | None,
    documents: list[NewTopicMessage],
    acknowledge: list[Acknowledgement],
) -> list[Receipt]:
    """Empties the list of documents."""
    weigh(call, documents)
    messages: list[TopicMessage] = []
    async for document, outgoing in outgoing_messages(documents):
        if not isinstance(outgoing, OutgoingMessage):
            reason = f"nothing was published or acknowledged, because message {len(messages)} is not valid"
            raise RequestError(outgoing.kind, f"{reason}: {outgoing.message}") from outgoing
        messages.append((document.topic, outgoing))
    if call.exchange.meter is not None:
        await call.count_many_published(message for _, message in messages)
    published = await call.broker.transaction_requests.execute(
        call.caller, TransactionRequest(request_id, messages, acknowledge)
    )
    await free(messages)
    return [Receipt(place.message_id, place.partition, place.offset, place.duplicate) for place in published]


def _acknowledged(acknowledgement: NewAcknowledgement) -> AcknowledgedMessages:
    """Return the acknowledged messages, named as in the request."""
    targets = targets_of(acknowledgement)
    if names_leases(acknowledgement):
        return AcknowledgedMessages(acknowledgement.subscription, ack_ids=targets)
    return AcknowledgedMessages(acknowledgement.subscription, message_ids=targets)


def _wrong(detail: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, detail)
