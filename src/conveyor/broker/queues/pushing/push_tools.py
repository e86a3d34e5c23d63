"""Everything that the pushers of a broker's subscriptions share."""

from collections.abc import Callable
from contextlib import suppress

from conveyor.broker.queues.pushing.push_budget import PushBudget
from conveyor.broker.queues.pushing.push_client import OpenPushClient, PushClient
from conveyor.broker.queues.pushing.push_rights import PushRights
from conveyor.broker.queues.pushing.push_secrets import PushSecrets
from conveyor.broker.queues.queues import Queues
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.errors import RequestError
from conveyor.queues.push.circuit_breaker import CircuitBreakers
from conveyor.queues.subscription.policy import Subscription


class PushTools:
    """See the module's docstring. open_client: opens the client when the first request is made."""

    def __init__(
        self,
        services: Services,
        rights: PushRights,
        secrets: PushSecrets,
        queues: Queues,
        leaders: LeaderCalls,
        open_client: OpenPushClient,
    ) -> None:
        self.clock, self.slices, self.tasks, self.node_id = services.clock, services.slices, services.tasks, services.me
        self.rights = rights
        self.secrets = secrets
        self.leases = queues.leases
        self.settlements = queues.settlements
        self.breakers = CircuitBreakers()
        self.budget = PushBudget(services)
        self._metadata = services.metadata
        self._leaders = leaders
        self._open_client = open_client
        self._client: PushClient | None = None

    def client(self) -> PushClient:
        """Return the client, opened by the first call."""
        if self._client is None:
            self._client = self._open_client()
        return self._client

    def close(self) -> None:
        """Close the client, if it was opened."""
        if self._client is not None:
            self._client.close()

    def settle(self, submit: Callable[[], None]) -> None:
        """Settle messages. Those of a subscription that was deleted are settled."""
        with suppress(RequestError):
            submit()

    def share_of(self, subscription: Subscription, max_concurrency: int) -> int:
        """Return the part of a target's requests that this broker may have open: by the partitions that it leads."""
        topic = self._metadata.image.topics.get(subscription.topic)
        if topic is None:
            return 1
        led_count = self._leaders.leaders(subscription.topic).led_count
        return max(1, max_concurrency * led_count // len(topic.partitions))
