"""Users who publish and lease over REST, and log in by Basic with each request.

publish     one message
lease       wait for messages of a subscription of the topic, which come again soon

Both go to any broker, on a connection that several users and passwords take in turns.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from conveyor.kernel.access.acl import ANY, ANY_USER, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.declared_access import READ, WRITE
from conveyor.kernel.ids import NodeId
from simulation.clients.users.audit_promise import AuditPromise
from simulation.clients.users.user_credentials import MECHANISM, PASSWORDS, USERS, secret
from simulation.clients.users.user_promises import Known, RestWatch, Right
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.broker_doors import HTTP_USERS_PORT
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.watched_rest_link import WatchedRestLink
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step
from simulation.troubles import GUARDED_TOPIC

GUARDED_SUBSCRIPTION = "guarded-workers"
"""The subscription of GUARDED_TOPIC, which is created before the story begins, and may be read by all users."""
GROUP_ACL = Acl(
    ResourceType.GROUP, GUARDED_SUBSCRIPTION, PatternType.LITERAL, ANY_USER, ANY, AclOperation.READ, Permission.ALLOW
)
_TIMEOUT_S = 10.0
_LEASE = f"/subscriptions/{GUARDED_SUBSCRIPTION}/messages?max_messages=100&wait=1000ms&visibility=100ms"
_PUBLISH = f"/topics/{GUARDED_TOPIC}/messages"
_FORBIDDEN, _UNAUTHORIZED = 403, 401


class RestUser:
    """See the module's docstring. A connection to each broker."""

    def __init__(self, cluster: SimulatedCluster, audit: AuditPromise, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._audit = audit
        self._counts = counts
        self._links: dict[NodeId, WatchedRestLink] = {}
        self._asking = asyncio.Lock()
        self._right_login: tuple[str, str] | None = None
        """The last one, while it is right."""

    async def execute(self, step: Step, _: ClientDoor) -> None:
        number, node_ids = step.number, list(self._cluster.brokers)
        node_id = node_ids[number % len(node_ids)]
        async with self._asking:
            login = USERS[number // 8 % 2], PASSWORDS[number // 16 % 2]
            if self._right_login is not None and number // 32 % 4:
                login = self._right_login
            known = Known(self._cluster.brokers[node_id], login[0], MECHANISM, secret(*login)[1])
            await self._ask_broker(step, node_id, known, login[1])

    async def _ask_broker(self, step: Step, node_id: NodeId, known: Known, password: str) -> None:
        with suppress(Disconnected):
            link = await self._link(node_id, known.broker)
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._ask(link, known, password, publishes=step.action == "publish")
            except TimeoutError:
                link.close()

    async def _ask(self, link: WatchedRestLink, known: Known, password: str, *, publishes: bool) -> None:
        right = Right(known.user, WRITE if publishes else READ, GUARDED_TOPIC)
        login = known.user, password
        if publishes:
            watch = RestWatch(known, right)
            answer = await link.ask("POST", _PUBLISH, known.user, login, watch)
        else:
            watch = RestWatch(known, right, lambda document: bool(document["messages"]))
            answer = await link.ask("GET", _LEASE, None, login, watch)
        self._right_login = None if answer.status == _UNAUTHORIZED else login
        if answer.status == _FORBIDDEN:
            self._audit.refused(watch.answered_by, right)
        outcome = {_FORBIDDEN: "refused", _UNAUTHORIZED: "not let in"}.get(answer.status, "answered")
        self._counts.note(f"rest user {outcome}")

    async def _link(self, node_id: NodeId, broker: SimulatedBroker) -> WatchedRestLink:
        link = self._links.get(node_id)
        if link is None or not link.is_open:
            link = self._links[node_id] = await self._cluster.clients.network.connect(
                lambda: WatchedRestLink(broker.bugs.append), broker.host, HTTP_USERS_PORT
            )
        return link


def rest_users(cluster: SimulatedCluster, audit: AuditPromise, counts: FaultCounts) -> Mapping[str, RestUser]:
    """Return the clients by the names of their actors."""
    return {f"rest-user-{number}": RestUser(cluster, audit, counts) for number in (1, 2)}
