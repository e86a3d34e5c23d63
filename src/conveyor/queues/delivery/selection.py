"""Decides which messages a subscription delivers: by its filter, by time to live, and by addressee."""

import logging
from collections.abc import Sequence

from conveyor.kernel.errors import RequestError
from conveyor.queues.queue_commands import SubscriptionProbe
from conveyor.queues.subscription.filters import Filter, FilterFailure
from conveyor.queues.subscription.policy import Policy, Subscription
from conveyor.queues.subscription.queue_records import Kind
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message import Message
from conveyor.records.message_attributes import ONLY_FOR, MessageAttributes, explain_header, last_header

log = logging.getLogger(__name__)


Verdict = Kind | str | None
"""None: the message is delivered. SETTLED or EXPIRED: a record of this kind settles it. A text: the reason for which it
becomes a dead letter.
"""


class MessageSelection:
    """See the module's docstring.

    fault: why the subscription cannot be served: another broker version accepted a filter that this one rejects.
    """

    def __init__(self, subscription: Subscription, progress: Progress, probe: SubscriptionProbe) -> None:
        self._progress = progress
        self._probe = probe
        self.use(subscription)

    def use(self, subscription: Subscription) -> None:
        """Apply the subscription's policy from now on."""
        self._subscription = subscription
        self._has_logged_filter_failure = False
        self.filter: Filter | None = None
        self.fault: str | None = None
        if subscription.policy.filter is None:
            return
        try:
            self.filter = Filter(subscription.policy.filter)
        except RequestError as error:
            self.fault = (
                f"the filter of subscription '{subscription.name}' is not valid: {error.message}; change the filter"
            )

    def wants(self, message: Message) -> bool:
        """Return whether the message passes the filter."""
        try:
            return self.filter is None or self.filter.matches(message)
        except FilterFailure:
            return self._policy.on_filter_error != "skip"

    def verdict(self, message: Message, attributes: MessageAttributes, now_ms: int) -> Verdict:
        """Decide on a message that is to be delivered next, and count what is left out."""
        if not self._is_addressee(message):
            return Kind.SETTLED
        is_expired = 0 < attributes.expires_ms <= now_ms and message.offset not in self._progress.restored
        if is_expired and self._policy.on_expiry != "dead_letter":
            return Kind.EXPIRED
        filtered = self._filtered(message)
        return "expired" if filtered is None and is_expired else filtered

    def count_unreadable(self, message: Message, names: Sequence[str]) -> None:
        """Count unreadable headers. A producer that uses the Kafka protocol cannot be notified of them."""
        if not self._probe.unreadable_headers:
            log.warning(
                "header ignored topic=%s subscription=%s partition=%d offset=%d: %s",
                message.topic,
                self._subscription.name,
                message.partition,
                message.offset,
                explain_header(names[0], last_header(message.headers, names[0])),
            )
        self._probe.unreadable_headers += len(names)

    @property
    def _policy(self) -> Policy:
        return self._subscription.policy

    def _is_addressee(self, message: Message) -> bool:
        addressee = last_header(message.headers, ONLY_FOR)
        return addressee is None or addressee == self._subscription.name.encode()

    def _filtered(self, message: Message) -> Verdict:
        """Decide by the filter. A message that was delivered before has passed it."""
        if self.filter is None or message.offset in self._progress.attempts:
            return None
        try:
            if self.filter.matches(message):
                return None
        except FilterFailure as failure:
            return self._filter_failed(message, failure)
        self._probe.filtered += 1
        return Kind.SETTLED

    def _filter_failed(self, message: Message, failure: FilterFailure) -> Verdict:
        self._probe.filter_errors += 1
        if not self._has_logged_filter_failure:
            self._has_logged_filter_failure = True
            log.warning(
                "filter failed subscription=%s message=%s: %s", self._subscription.name, message.message_id, failure
            )
        if self._policy.on_filter_error == "deliver":
            return None
        return Kind.SETTLED if self._policy.on_filter_error == "skip" else f"filter failed: {failure}"
