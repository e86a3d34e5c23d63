"""Operations on queues as a whole, besides CreateQueue: they delete, find, list and purge them."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.protocols.queue_operations import (
    DeleteQueueRequest,
    GetQueueUrlRequest,
    GetQueueUrlResult,
    ListDeadLetterSourceQueuesRequest,
    ListDeadLetterSourceQueuesResult,
    ListQueuesRequest,
    ListQueuesResult,
    PurgeQueueRequest,
)
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name
from conveyor.http_api.sqs.queues.stored_queue import CREATED_MS, PURGED_MS, PURGES, redrive_policy_of
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import DESCRIBE
from conveyor.queues.subscription.policy import Subscription
from conveyor.settings.sqs_settings import STRICT

_MAX_RESULTS = 1_000
_PURGE_MS = 60_000


async def delete_queue(call: ActionCall[DeleteQueueRequest]) -> None:
    """Delete a queue. The topic stays if CreateQueue has not made it, or if it has other subscriptions."""
    queue, broker, caller = call.queue(), call.broker, call.http.caller
    is_own = CREATED_MS in queue.annotations and len(broker.cluster.subscriptions.all(queue.topic)) == 1
    if not is_own:
        return await broker.queues.lifecycle.delete(caller, queue.name)
    if call.http.exchange.meter is not None:
        call.http.exchange.meter.mutated(len(broker.topics.existing(queue.topic).partitions))
    return await broker.topics.delete(caller, queue.topic)


async def get_queue_url(call: ActionCall[GetQueueUrlRequest]) -> GetQueueUrlResult:
    """Return the URL of a queue."""
    return GetQueueUrlResult(queue_url=call.url_of(call.queue().name))


async def list_queues(call: ActionCall[ListQueuesRequest]) -> ListQueuesResult:
    """List queues by name."""
    members, prefix = call.members, call.members.queue_name_prefix or ""
    names, token = await _page(call, lambda queue: queue.name.startswith(prefix))
    if members.max_results is None:
        token = None
    return ListQueuesResult(queue_urls=[call.url_of(name) for name in names] or None, next_token=token)


async def list_dead_letter_source_queues(
    call: ActionCall[ListDeadLetterSourceQueuesRequest],
) -> ListDeadLetterSourceQueuesResult:
    """List the queues whose redrive policies name this one."""
    name = call.queue().name

    def is_source(queue: Subscription) -> bool:
        policy = redrive_policy_of(queue)
        return policy is not None and policy.dead_letter_queue == name

    names, token = await _page(call, is_source)
    return ListDeadLetterSourceQueuesResult(queue_urls=[call.url_of(name) for name in names], next_token=token)


async def purge_queue(call: ActionCall[PurgeQueueRequest]) -> None:
    """Settle all messages. With `sqs.profile=strict` at most once in 60 seconds."""
    queue, broker, caller = call.queue(), call.broker, call.http.caller
    changes: dict[str, str | None] = {}
    if is_fifo_name(queue.name):
        changes[PURGES] = str(int(queue.annotations.get(PURGES, "0")) + 1)
    if call.settings.profile == STRICT:
        now_ms = broker.clock.now_ms()
        if now_ms - int(queue.annotations.get(PURGED_MS, -_PURGE_MS)) < _PURGE_MS:
            reason = f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
            raise SqsError(SqsErrorKind.PURGE_QUEUE_IN_PROGRESS, reason)
        changes[PURGED_MS] = str(now_ms)
    if changes:
        await broker.queues.lifecycle.change(caller, queue.name, {}, annotations=changes)
    await broker.queues.lifecycle.purge(caller, queue.name)


async def _page(call: ActionCall[Any], is_listed: Callable[[Subscription], bool]) -> tuple[list[str], str | None]:
    """Return the names of a page of queues that the client may describe, and the token of the next page."""
    count, after = _limit(call.members.max_results), _after(call.members.next_token)
    queues = call.broker.cluster.subscriptions.all()
    found = [
        queue async for queue in call.broker.slices.each(queues)
        if queue.topic == queue.name and queue.name > after and is_listed(queue)
    ]  # fmt: skip
    names = [queue.name for queue in await call.http.permitted(DESCRIBE, ResourceType.GROUP, found)]
    page = names[:count]
    return page, urlsafe_b64encode(page[-1].encode()).decode() if len(names) > count else None


def _limit(asked: int | None) -> int:
    if asked is None:
        return _MAX_RESULTS
    if not 1 <= asked <= _MAX_RESULTS:
        raise invalid_parameter(
            "Value for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000."
        )
    return asked


def _after(token: str | None) -> str:
    """Return the last name of the page before."""
    if not token:
        return ""
    try:
        return b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise invalid_parameter("Invalid or expired next token.") from None
