"""The pushes of this broker: a pusher for each subscription with a target, from when the broker has started.

a subscription with a target appears, or gets one -> a pusher; loses it, or is deleted -> none
a queue of this broker may have new messages      -> the pushers of its topic are woken
rights of users have changed                      -> all pushers are woken
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import msgspec

from conveyor.broker.answers import all_answered, emitted, pause
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.clients.access_control import AccessControl
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.queues.pushing.push_changes import PushChanges
from conveyor.broker.queues.pushing.push_rights import PushRights
from conveyor.broker.queues.pushing.push_secrets import PushSecrets, SecretUnreadable
from conveyor.broker.queues.pushing.push_status import PushStatus
from conveyor.broker.queues.pushing.push_tools import PushTools
from conveyor.broker.queues.pushing.pusher import Pusher
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.queues import Queues
from conveyor.broker.remote.calls import Call
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.queues.push.push_target import GONE, PushTarget
from conveyor.queues.subscription.policy import Subscription

log = logging.getLogger(__name__)

_PAUSE_RETRY_MS = 5_000
_STATUS_TIMEOUT_MS = 5_000
_GRACE_MS = 2_000
"""The time that a stopping broker leaves to targets. A target that answers later gets the message again."""


class PushStatusHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the state of a subscription's push on the asked broker."""

    subscription: str
    subscription_id: UUID


_STATUS: Call[PushStatusHere, PushStatus | None] = Call(
    "queue.push_status", PushStatusHere, PushStatus | None, is_repeatable=True
)


class Pushing:
    """See the module's docstring. changes: makes targets of what clients ask for."""

    def __init__(
        self, services: Services, queues: Queues, calls: QueueCalls, access: AccessControl, ports: BrokerPorts
    ) -> None:
        rights, secrets = PushRights(services, access), PushSecrets(services, ports.secret_keys)
        self.changes = PushChanges(rights, secrets)
        self._tools = PushTools(services, rights, secrets, queues, calls.leaders, ports.open_push_client)
        self._services = services
        self._subscriptions = subscriptions = calls.subscriptions
        self._leaders = leaders = calls.leaders
        self._pushers: dict[UUID, Pusher] = {}
        self._by_topic: dict[UUID, dict[UUID, Pusher]] = {}
        self._pausing: set[UUID] = set()
        self._is_running = False
        subscriptions.added.listen(self._changed)
        subscriptions.changed.listen(self._changed)
        subscriptions.removed.listen(self._removed)
        calls.partitions.changed.listen(self._messages)
        services.metadata.listen(self._observe)
        leaders.handlers.register(_STATUS, self._status_here)
        services.serving.push_async_callback(self._stop)

    def start(self) -> None:
        """Begin to push."""
        self._is_running = True
        for subscription in self._subscriptions.all():
            self._changed(subscription)
        if self._pushers:
            self._services.tasks.start(self._renew_secrets())

    async def _stop(self) -> None:
        """Begin no more requests, and wait a while for the answers to those that are under way."""
        self._is_running = False
        for pusher in self._pushers.values():
            pusher.stop()
        self._pushers.clear()
        self._by_topic.clear()
        budget = self._tools.budget
        if budget.open_count:
            await emitted(budget.idle, self._services.clock, _GRACE_MS)
        self._tools.close()

    async def statuses(self, caller: Caller, subscription: Subscription) -> list[PushStatus]:
        """Return the state of a push on each broker that leads partitions of its topic and can be reached."""
        request = PushStatusHere(subscription.name, subscription.id)
        try:
            leaders = self._leaders.leaders(subscription.topic)
        except RequestError:  # The topic was deleted.
            return []
        asks = [self._status_of(caller, node_id, request) for node_id in leaders.others]
        others = await all_answered(asks) if asks else []
        own = await self._status_here(caller, request) if leaders.is_here else None
        return [status for status in (own, *others) if status is not None]

    def measures(self) -> Sequence[tuple[Subscription, PushStatus]]:
        """Return the state of every push on this broker."""
        return [(pusher.subscription, pusher.status()) for pusher in self._pushers.values()]

    async def _status_of(self, caller: Caller, node_id: NodeId, request: PushStatusHere) -> PushStatus | None:
        try:
            return await self._leaders.ask_node(caller, _STATUS, node_id, request, _STATUS_TIMEOUT_MS)
        except (RequestError, PeerUnreachable) as error:
            log.debug("state of a push not shown broker=%d reason=%s", node_id, error)
            return None

    async def _status_here(self, caller: Caller, request: PushStatusHere) -> PushStatus | None:
        pusher = self._pushers.get(request.subscription_id)
        return None if pusher is None else pusher.status()

    def _changed(self, subscription: Subscription) -> None:
        """A subscription has appeared, or has changed."""
        pusher = self._pushers.get(subscription.id)
        if subscription.push is None or not self._is_running:
            return self._removed(subscription)
        if pusher is not None:
            return pusher.use(subscription)
        pusher = self._pushers[subscription.id] = Pusher(self._tools, subscription, self._gone)
        self._by_topic.setdefault(subscription.topic_id, {})[subscription.id] = pusher
        pusher.wake()

    def _removed(self, subscription: Subscription) -> None:
        pusher = self._pushers.pop(subscription.id, None)
        if pusher is None:
            return
        pusher.stop()
        of_topic = self._by_topic[subscription.topic_id]
        del of_topic[subscription.id]
        if not of_topic:
            del self._by_topic[subscription.topic_id]

    def _messages(self, partition: QueuePartition) -> None:
        """Wake the pushers that have messages in this partition."""
        for subscription_id, pusher in self._by_topic.get(partition.topic_id, {}).items():
            queue = partition.machine.queue(subscription_id)
            if queue is not None and queue.has_messages:
                pusher.wake()

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.acls is not new.acls or old.scram is not new.scram:
            for pusher in self._pushers.values():
                pusher.wake()

    async def _renew_secrets(self) -> None:
        """Encrypt the secrets in the metadata by the key that encrypts today, so that the one before it can go."""

        for subscription in [pusher.subscription for pusher in self._pushers.values()]:

            def renewed(present: PushTarget | None, name: str = subscription.name) -> PushTarget | None:
                secrets = () if present is None else self._tools.secrets.renewed(name, present.secrets)
                return present if present is None else replace(present, secrets=secrets)

            try:
                await self._subscriptions.change(subscription, {}, change_push=renewed)
            except (RequestError, SecretUnreadable) as error:
                log.warning("secret of a push not encrypted anew subscription=%s: %s", subscription.name, error)

    def _gone(self, subscription: Subscription, target: PushTarget) -> None:
        if subscription.id not in self._pausing:
            self._pausing.add(subscription.id)
            self._services.tasks.start(self._pause(subscription, target))

    async def _pause(self, subscription: Subscription, target: PushTarget) -> None:
        """Pause the push to a target that is gone, unless a client has changed the target meanwhile."""

        def paused(present: PushTarget | None) -> PushTarget | None:
            return replace(present, paused=GONE) if present == target else present

        try:
            while self._is_running and self._subscriptions.exists(subscription):
                try:
                    changed = await self._subscriptions.change(subscription, {}, change_push=paused)
                    if changed.push == replace(target, paused=GONE):
                        log.warning("push paused, its target is gone (410) subscription=%s", subscription.name)
                    return
                except RequestError as error:
                    log.debug("push not paused subscription=%s reason=%s", subscription.name, error.message)
                    await pause(self._services.clock, _PAUSE_RETRY_MS)
        finally:
            self._pausing.discard(subscription.id)
