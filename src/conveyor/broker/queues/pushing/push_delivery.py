"""One request to a push target, from leased messages to the verdict about them."""

import asyncio
from collections.abc import Sequence

from conveyor.broker.queues.pushing.push_client import PushFailed, PushRequest
from conveyor.broker.queues.pushing.push_tools import PushTools
from conveyor.kernel.response_budget import SMALL_BYTES
from conveyor.queues.push.cloud_event import encode_events
from conveyor.queues.push.push_target import BATCH, PushTarget
from conveyor.queues.push.push_url import PushUrl
from conveyor.queues.push.push_verdict import Verdict, answer_verdict, failure_verdict, timeout_verdict
from conveyor.queues.push.request_id import request_id
from conveyor.queues.push.webhook_signature import webhook_headers
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import Subscription

SUBSCRIPTION_HEADER, DELIVERY_COUNT_HEADER = "conveyor-subscription", "conveyor-delivery-count"
_USER_AGENT = ("user-agent", "conveyor")


class PushDelivery:
    """See the module's docstring.

    url: that of the target. secrets: sign the request, the newest first. leases: several only in batch mode.
    """

    def __init__(
        self,
        tools: PushTools,
        subscription: Subscription,
        target: PushTarget,
        url: PushUrl,
        secrets: Sequence[bytes],
        leases: Sequence[LeasedMessage],
    ) -> None:
        self._tools = tools
        self._subscription = subscription
        self._target = target
        self._url = url
        self._secrets = secrets
        self._leases = leases
        self._has_timed_out = False

    async def run(self) -> Verdict:
        """Send the request, and return the verdict about its messages."""
        if sum(lease.message.weight_bytes for lease in self._leases) > SMALL_BYTES:
            request = await self._tools.slices.in_thread(self._request)
        else:
            request = self._request()
        post = asyncio.ensure_future(self._tools.client().post(request))

        def time_out() -> None:
            self._has_timed_out = True
            post.cancel()

        cancel_timer = self._tools.clock.call_later(self._target.timeout_ms, time_out)
        try:
            answer = await post
        except asyncio.CancelledError:
            if not self._has_timed_out:
                raise
            return timeout_verdict(self._target.timeout_ms)
        except PushFailed as failure:
            return failure_verdict(str(failure), is_sent=failure.is_sent)
        finally:
            cancel_timer()
        return answer_verdict(answer.status, answer.retry_after, self._tools.clock.now_ms())

    def _request(self) -> PushRequest:
        target, messages = self._target, [lease.message for lease in self._leases]
        content = encode_events(target.mode, messages, target.content_type)
        signed_id = request_id(self._subscription.topic_id, messages)
        timestamp_s = self._tools.clock.now_ms() // 1_000
        headers = [_USER_AGENT, (SUBSCRIPTION_HEADER, self._subscription.name)]
        if target.mode != BATCH:
            headers.append((DELIVERY_COUNT_HEADER, str(self._leases[0].delivery_count)))
        return PushRequest(
            url=self._url,
            headers=(
                *headers,
                *content.headers,
                *webhook_headers(signed_id, timestamp_s, content.body, self._secrets),
            ),
            body=content.body,
            allows_private=target.allow_private and self._tools.rights.allow_private,
        )
