"""Passes to a handler what the client has a right to, and answers the rest.

    request --> the needs of its API --> a right on the whole is missing: answered here, and nothing has an effect
                                     --> on some items: the handler gets the others; the refused ones join its answer
                                     --> on all items: answered here
    answer  --> without the resources that the client may not see; refused if it has waited for other clients, and the
                rights have gone

Source: KafkaApis and AuthHelper of Kafka 4.3.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

from conveyor.broker.clients.access_control import AccessControl
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.access.named import Parents, Place, items, names, place, without
from conveyor.kafka_api.access.operations import request_name
from conveyor.kafka_api.access.refused_results import nothing, refused_item, refused_request, results_path
from conveyor.kafka_api.wire.call import Handler, KafkaCall
from conveyor.kafka_api.wire.codec import Body
from conveyor.kafka_api.wire.division import Path
from conveyor.kafka_api.wire.versions import (
    DESCRIBE_TOPIC_PARTITIONS_KEY,
    FETCH_KEY,
    METADATA_KEY,
    PRODUCE_KEY,
    ServedApi,
)
from conveyor.kernel.access.acl import ANY, CLUSTER_NAME, ResourceType
from conveyor.kernel.access.acl_rules import NOT_ALLOWED, AccessDecision
from conveyor.kernel.access.declared_access import REFUSALS, Access, AnyOf
from conveyor.kernel.errors import ErrorKind, RequestError

_DECIDE = frozenset({PRODUCE_KEY, FETCH_KEY, DESCRIBE_TOPIC_PARTITIONS_KEY})
"""APIs whose handlers decide. The first two pack their answers by hand, and a fetch decides again when it reads again;
the last one has pages.
"""
_REFUSED_AS_A_WHOLE = frozenset({68})
"""APIs whose requests are refused because of one of several names."""
_ALL_OR_NONE = frozenset({24})
"""APIs that do nothing if an item is refused, and answer that for the others."""

_WAITS_FOR_OTHERS = frozenset({11, 14, 68})
"""APIs for members of groups: an answer may wait for minutes, and shows what other members have sent."""


def guarded(api: ServedApi, handle: Handler) -> Handler:
    """Return a handler that passes on what the client has a right to."""
    if not api.needs or api.key in _DECIDE:
        return handle

    def decide(call: KafkaCall) -> None:
        screening = _Screening(call, api, call.broker.clients.access)
        if call.size.is_long:
            call.start(_in_turns(call, screening, handle))
        else:
            for _ in screening.steps():
                pass
            screening.finish(handle)

    return decide


async def _in_turns(call: KafkaCall, screening: "_Screening", handle: Handler) -> None:
    for _ in screening.steps():
        await call.broker.slices.turn()
    screening.finish(handle)


def _refusal(access: Access) -> RequestError:
    """Return the error for a missing right."""
    return RequestError(REFUSALS[access.resource_type], f"no right to {access}")


class _RefusedItem(NamedTuple):
    """An item at the end of a path, and the entities that it is in."""

    path: Path
    item: Any
    parents: Parents
    error: RequestError


class _Screening:
    """The decision on one request. Call `finish` once all `steps` are done."""

    def __init__(self, call: KafkaCall, api: ServedApi, access: AccessControl) -> None:
        self._call = call
        self._api = api
        self._access = access
        self._rules = access.rules
        self._request = call.request
        self._schema: Any = type(call.request)
        self._error: RequestError | None = None
        self._refused: list[_RefusedItem] = []
        self._refused_ids: set[int] = set()
        self._listed: list[Access] = []

    def steps(self) -> Iterator[None]:
        """Decide, in steps of some names."""
        for need in self._api.needs:
            if isinstance(need, AnyOf) and need.to_create:
                continue  # The handler knows what it would create.
            alternatives = need.alternatives if isinstance(need, AnyOf) else (need,)
            applying = [access for access in alternatives if self._applies(access)]
            if not applying:
                continue
            on_whole = next((decision for decision in map(self._on_whole, applying) if decision.is_allowed), None)
            if on_whole is not None:
                yield from self._note_all(applying[-1], on_whole)
                continue
            if applying[-1].listed_by:
                self._listed.append(applying[-1])
            yield from self._look_at(applying[-1])
            if self._error is not None:
                return

    def finish(self, handle: Handler) -> None:
        """Answer, or pass the rest to the handler."""
        call, header = self._call, self._call.header
        if self._error is not None:
            return call.answer(refused_request(header.api_key, header.api_version, self._request, self._error))
        if self._refused and self._api.key in _ALL_OR_NONE:
            self._refuse_the_rest()
        if self._refused or self._listed or self._api.key in _WAITS_FOR_OTHERS:
            call.amend = self
        paths = {refused.path for refused in self._refused}
        for path in paths:
            call.request = without(call.request, path, lambda item: id(item) in self._refused_ids)
        if self._api.key != METADATA_KEY and any(not getattr(call.request, path[0]) for path in paths):
            return call.answer(nothing(header.api_key, header.api_version, self._request))
        handle(call)

    def _applies(self, access: Access) -> bool:
        """Return whether a right is needed, at least for some items."""
        if access.unless is not None and getattr(self._request, access.unless, None) is not None:
            return False
        if access.given is None:
            return True
        fields, numbers = access.given
        where = place(self._schema, fields)
        if where is None:
            return 0 in numbers
        return bool(where.path) or getattr(self._request, where.fields[0]) in numbers

    def _on_whole(self, access: Access) -> AccessDecision:
        """Return whether the client has a right on the cluster, or on any resource."""
        caller, operation = self._call.caller, access.operation
        if access.is_any:
            return self._access.decide_any(caller, operation, access.resource_type)
        if access.resource_type is ResourceType.CLUSTER:
            return self._access.decide(caller, operation, access.resource_type, CLUSTER_NAME)
        return NOT_ALLOWED

    def _note_all(self, access: Access, decision: AccessDecision) -> Iterator[None]:
        """Let the audit know of a right on the whole that permits the request, for all that it names."""
        if self._access.audit is None:
            return
        where = self._place(access)
        if where is None or access.resource_type is ResourceType.CLUSTER:
            return self._note(access, decision)
        for number, (item, _) in enumerate(items(self._request, where.path), 1):
            if number % SLICE_ITEMS == 0:
                yield
            for name in self._names(where, item):
                self._note(access, decision, name)

    def _note(self, access: Access, decision: AccessDecision, name: str | None = None) -> None:
        """name: of a resource; None for the cluster, or for any resource of the type."""
        if name is None:
            name = CLUSTER_NAME if access.resource_type is ResourceType.CLUSTER else ANY
        if self._access.audit is not None:
            call = self._call
            self._access.audit.note(
                call.caller, request_name(call), access.operation, access.resource_type, name, decision
            )

    def _look_at(self, access: Access) -> Iterator[None]:
        """Refuse the request, or its items, that a missing right is for."""
        where = self._place(access)
        if where is None:
            if access.is_any or access.resource_type is ResourceType.CLUSTER:
                self._error = _refusal(access)
                self._note(access, self._on_whole(access))
            return
        for number, (item, parents) in enumerate(items(self._request, where.path), 1):
            if number % SLICE_ITEMS == 0:
                yield
            is_refused = not self._refused_ids.isdisjoint(map(id, (item, *parents)))
            if is_refused or not self._is_needed(access, item) or self._allows_all(access, where, item):
                continue
            if not where.path or self._api.key in _REFUSED_AS_A_WHOLE:
                self._error = _refusal(access)
                return
            self._refuse(_RefusedItem(where.path, item, parents, _refusal(access)))

    def _place(self, access: Access) -> Place | None:
        if access.named_by:
            return place(self._schema, access.named_by)
        where = None if access.given is None else place(self._schema, access.given[0])
        return where if where is not None and where.path else None

    def _is_needed(self, access: Access, item: Any) -> bool:
        """Return whether a right is needed for an item."""
        if access.given is None:
            return True
        fields, numbers = access.given
        where = place(self._schema, fields)
        return where is None or not where.path or getattr(item, where.fields[0]) in numbers

    def _allows_all(self, access: Access, where: Place, item: Any) -> bool:
        if access.resource_type is ResourceType.CLUSTER:
            self._note(access, self._on_whole(access))
            return False  # Or the item would not be looked at.
        caller, request = self._call.caller, request_name(self._call)
        operation, resource_type = access.operation, access.resource_type
        permits = self._access.permits
        return all(permits(caller, request, operation, resource_type, name) for name in self._names(where, item))

    def _names(self, where: Place, item: Any) -> Iterator[str]:
        return names(item, where.fields, self._call.broker.metadata.image.names_by_id)

    def _refuse_the_rest(self) -> None:
        path = self._refused[0].path
        reason = RequestError(ErrorKind.OPERATION_NOT_ATTEMPTED, "another item of the request is refused")
        for item, parents in items(self._request, path):
            if id(item) not in self._refused_ids:
                self._refuse(_RefusedItem(path, item, parents, reason))

    def _refuse(self, refused: _RefusedItem) -> None:
        self._refused.append(refused)
        self._refused_ids.add(id(refused.item))

    def amended(self, body: Body) -> Body:
        """Return an answer without what the client may not see any more, and with the results of what is refused."""
        return next(filter(None, self._amending(body)))

    async def amended_in_turns(self, body: Body) -> Body:
        """As `amended`, some items in a turn of the loop."""
        for amended in self._amending(body):
            if amended is not None:
                return amended
            await self._call.broker.slices.turn()
        raise AssertionError("the last step is the answer")

    def _amending(self, body: Body) -> Iterator[Body | None]:
        """Yield None after some items, and the amended answer at the end."""
        key, version = self._call.header.api_key, self._call.header.api_version
        if self._access.rules is not self._rules:
            if key in _WAITS_FOR_OTHERS:
                yield from self.steps()
            for access in self._listed:
                yield from self._look_at(access)
            if self._error is not None:
                yield refused_request(key, version, self._request, self._error)
                return
        amended = dict(body)
        for access in self._listed:
            for dotted in access.listed_by:
                amended = yield from self._visible(access, amended, dotted.split("."))
        for path, item, parents, error in self._refused:
            *outer, array = results_path(key, version, path)
            result = refused_item(key, version, self._request, path, item, error)
            entity = amended
            for name, parent in zip(outer, parents, strict=True):
                entity = _result_of(parent, entity[name])
            entity[array] = [*(entity[array] or ()), result]
        yield amended

    def _visible(self, access: Access, entity: Body, way: list[str]) -> Generator[None, None, dict[str, Any]]:
        """Return an entity with what the client may see. Yields after some items."""
        name, *rest = way
        shown = dict(entity)
        if shown.get(name) is None:
            return shown
        kept: list[Body] = []
        for number, below in enumerate(shown[name], 1):
            if len(rest) > 1:
                kept.append((yield from self._visible(access, below, rest)))
            elif self._shows(access, rest[0], below):
                kept.append(below)
            if number % SLICE_ITEMS == 0:
                yield
        return shown | {name: kept}

    def _shows(self, access: Access, field: str, entry: Body) -> bool:
        value = entry.get(field)
        if value is None:
            return True
        named: Iterable[str] = names(value, (), self._call.broker.metadata.image.names_by_id)
        caller, allows = self._call.caller, self._access.allows
        return all(allows(caller, access.operation, access.resource_type, name) for name in named)


def _result_of(parent: Any, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of an entity that has refused items."""
    return next(result for result in results if result["group_id"] == parent.group_id)
