"""Decides whether a client has the rights that its request needs, by the declaration of the endpoint.

    topic                   the path names a resource
    body.messages.topic     fields of the body name resources, here those of all messages
    subscription.topic      the broker knows which, of something that the request names

A request that lacks one right is refused as a whole. The refusal names the right, not the resource: that may be the
topic of a subscription, or not exist. What does not exist is refused like what the client has no right to, unless the
client may know that it does not exist.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import UNSET

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kernel.access.acl import ANY, CLUSTER_NAME, ResourceType
from conveyor.kernel.access.acl_rules import AccessDecision
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.declared_access import REFUSALS, Access, AnyOf, Needs
from conveyor.kernel.errors import RequestError
from conveyor.settings.setting import as_text

_MAX_REMEMBERED = 10_000
"""Checks."""
_MAX_REMEMBERED_CHARACTERS = 512
"""Of the names in a check. Clients choose them."""
_NOBODY_KNOWS = object()
"""In place of the topic of a schedule that does not exist: it could be any."""


class _Decided(NamedTuple):
    """A decision on a resource. name: of the resource, or _NOBODY_KNOWS."""

    decision: AccessDecision
    access: Access
    name: Any


class RequestRights:
    """See the module's docstring."""

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker
        self._access = broker.clients.access
        self._image = broker.metadata.image
        self._passed: dict[tuple[object, ...], tuple[Needs, list[_Decided]]] = {}
        """The checks that all went well, by this image. An id is that of needs which are kept here."""
        self._known: dict[str, Callable[[str], Any]] = {
            "subscription.topic": self._topic_of_subscription,
            "subscription.dead_letter_topic": self._dead_letter_topic,
            "schedule.topic": self._topic_of_schedule,
        }

    def check(
        self, caller: Caller, request: str, needs: Needs, names: Mapping[str, str], *, is_noted: bool = True
    ) -> None:
        """Raise RequestError if a client lacks a right on what the path parameters name. It remembers who had all.

        is_noted: see `conveyor.http.endpoints.endpoint_application.Rights`.
        """
        image = self._broker.metadata.image
        if image is not self._image or len(self._passed) >= _MAX_REMEMBERED:
            self._image = image
            self._passed.clear()
        key = caller.principal, caller.address, id(needs), *names.values()
        passed = self._passed.get(key)
        if passed is None:
            decided: list[_Decided] = []
            for _ in self._steps(caller, request, needs, names, decided):
                pass
            passed = needs, decided
            if sum(map(len, names.values())) <= _MAX_REMEMBERED_CHARACTERS:
                self._passed[key] = passed
        if is_noted:
            self._note(caller, request, passed[1])

    def check_body(self, caller: Caller, request: str, needs: Needs, body: Any) -> Coroutine[Any, Any, None] | None:
        """Raise RequestError if a client lacks a right on what the body names. Returns a coroutine that goes on if it
        names much.
        """
        steps = self._steps_of_body(caller, request, needs, body)
        for _ in steps:
            return self._go_on(steps)
        return None

    async def _go_on(self, steps: Iterator[None]) -> None:
        await self._broker.slices.turn()
        for _ in steps:
            await self._broker.slices.turn()

    def _steps_of_body(self, caller: Caller, request: str, needs: Needs, body: Any) -> Iterator[None]:
        decided: list[_Decided] = []
        for _ in self._steps(caller, request, needs, {"body": body}, decided):
            yield
            self._note(caller, request, decided)
            decided.clear()
        self._note(caller, request, decided)

    def _note(self, caller: Caller, request: str, decided: Iterable["_Decided"]) -> None:
        """Let the audit know of decisions."""
        audit = self._access.audit
        if audit is not None:
            for decision, access, name in decided:
                shown = ANY if name is _NOBODY_KNOWS else name
                audit.note(caller, request, access.operation, access.resource_type, shown, decision)

    def _steps(
        self, caller: Caller, request: str, needs: Needs, named: Mapping[str, Any], decided: list["_Decided"]
    ) -> Iterator[None]:
        """Decide, in steps of some resources. Raises RequestError, of which the audit knows then.

        named: the beginnings of the declared paths. decided: gets what is allowed.
        """
        for need in needs:
            access = need.alternatives[-1] if isinstance(need, AnyOf) else need
            resources = self._resources(access, named)
            if isinstance(need, AnyOf):
                if need.to_create:
                    resources = [name for name in resources if self._would_create(name)]
                on_cluster = (self._decide(caller, on, CLUSTER_NAME) for on in need.alternatives[:-1])
                granted = next((decision for decision in on_cluster if decision.is_allowed), None)
                if resources and granted is not None:
                    decided += [_Decided(granted, access, name) for name in resources]
                    continue
            for number, name in enumerate(resources, 1):
                decision = self._decide(caller, access, name)
                if decision.is_allowed:
                    decided.append(_Decided(decision, access, name))
                else:
                    self._note(caller, request, [_Decided(decision, access, name)])
                    raise RequestError(REFUSALS[access.resource_type], f"{caller.principal} has no right to {access}")
                if number % SLICE_ITEMS == 0:
                    yield

    def _resources(self, access: Access, named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the names of the resources that a right is needed on; none if the answer leaves out the others."""
        if access.resource_type is ResourceType.CLUSTER:
            return [CLUSTER_NAME]
        found = list[Any]()
        for path in access.named_by:
            first, *rest = path.split(".")
            found += self._lead(first, [named[first]], rest)
        return list(dict.fromkeys(found))

    def _lead(self, kind: str, values: list[Any], path: list[str]) -> list[Any]:
        """Return what a path leads to from values of one kind: fields, items of lists, what the broker knows of a name,
        or a member of a dictionary, whose name may have dots.
        """
        if not path or not values:
            return values
        first, *rest = path
        if isinstance(values[0], str):
            known = self._known[f"{kind}.{first}"]
            return self._lead(first, _given(map(known, values)), rest)
        if isinstance(values[0], dict):
            return [as_text(value) for value in _given(members.get(".".join(path)) for members in values)]
        found = _given(getattr(value, first) for value in values)
        if found and isinstance(found[0], list):
            found = [item for items in found for item in items]
        return self._lead(first, found, rest)

    def _decide(self, caller: Caller, access: Access, name: Any) -> AccessDecision:
        if name is _NOBODY_KNOWS:
            return self._access.decide_all(caller, access.operation, access.resource_type)
        return self._access.decide(caller, access.operation, access.resource_type, name)

    def _would_create(self, topic: str) -> bool:
        """Return whether a request that names a topic creates it."""
        broker = self._broker
        return topic not in broker.metadata.image.topics and broker.settings.broker.auto_create_topics

    def _topic_of_subscription(self, name: str) -> str | None:
        """Return the topic of a subscription; None if there is none: all who ask may describe subscriptions of this
        name, because they have a right on the group.
        """
        with suppress(RequestError):
            return self._broker.cluster.subscriptions.existing(name).topic
        return None

    def _dead_letter_topic(self, name: str) -> str | None:
        """As `_topic_of_subscription`."""
        with suppress(RequestError):
            return self._broker.cluster.subscriptions.existing(name).policy.dead_letter_topic
        return None

    def _topic_of_schedule(self, name: str) -> Any:
        with suppress(RequestError):
            return self._broker.schedules.existing(name).topic
        return _NOBODY_KNOWS


def _given(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None and value is not UNSET]
