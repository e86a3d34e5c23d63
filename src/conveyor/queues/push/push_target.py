"""The target of a subscription's push: where its messages go, how, and on whose behalf. Pure data.

In the metadata it is a part of the subscription's document, with the fields of `PushTarget`. A field that this version
does not know is dropped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from conveyor.kernel.access.caller import NO_CONNECTION, Caller, Principal, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_url import parse_push_url

BINARY, STRUCTURED, BATCH = MODES = ("binary", "structured", "batch")
MAX_CONCURRENCY = 1_000
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 300_000
MAX_BATCH = 1_000
MAX_CONTENT_TYPE = 200
MAX_SECRETS = 2

REQUESTED, GONE = "requested", "gone"
"""Reasons of a pause: a client has asked for it; the target has answered 410."""

LISTENER = "PUSH"
"""In place of a listener, of what a push does on its owner's behalf."""

_CONTENT_TYPE = re.compile(r"[\x20-\x7e]*/[\x20-\x7e]*")
_RANGES = {
    "max_concurrency": (1, MAX_CONCURRENCY),
    "timeout_ms": (MIN_TIMEOUT_MS, MAX_TIMEOUT_MS),
    "batch_size": (1, MAX_BATCH),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOwner:
    """The user whose rights a push has: the one who has set it last.

    address: of that user's host then, which ACLs may name. has_password: the user was one of the cluster's, with a
    credential there, and must be one still.
    """

    user: str
    address: str
    has_password: bool = False

    @property
    def caller(self) -> Caller:
        """The owner as the caller of what the push does."""
        return Caller(Principal(PrincipalType.USER, self.user), self.address, LISTENER, NO_CONNECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTarget:
    """See the module's docstring.

    mode: one of MODES. max_concurrency: the most open requests of all brokers together, except that each leader has at
    least one. timeout_ms: of a request, from the look-up of its host's address to the head of its answer. batch_size:
    the most messages of a request in batch mode. content_type: of messages that do not say theirs. paused: why nothing
    is sent; None if it is. secrets: by which requests are signed, as `PushSecrets` stores them, the newest first.
    """

    url: str
    mode: str = BINARY
    max_concurrency: int = 10
    timeout_ms: int = 30_000
    batch_size: int = 100
    content_type: str = "application/octet-stream"
    allow_private: bool = False
    paused: str | None = None
    owner: PushOwner
    secrets: tuple[str, ...] = ()


def decoded_target(document: Mapping[str, Any]) -> PushTarget:
    """Return the target of a document in the metadata."""
    known = {target_field.name for target_field in fields(PushTarget)}
    values = {name: value for name, value in document.items() if name in known}
    return PushTarget(**values | {"owner": PushOwner(**document["owner"]), "secrets": tuple(document["secrets"])})


def changed_target(target: PushTarget, document: Mapping[str, Any]) -> PushTarget:
    """Return a target with the fields of a document replaced. Raises RequestError (INVALID_SUBSCRIPTION)."""
    changed = replace(target, **document)
    parse_push_url(changed.url)
    if changed.mode not in MODES:
        raise _invalid(f"push.mode must be one of {', '.join(MODES)}")
    for name, (minimum, maximum) in _RANGES.items():
        if not minimum <= getattr(changed, name) <= maximum:
            raise _invalid(f"push.{name} must be a whole number from {minimum} to {maximum}")
    if len(changed.content_type) > MAX_CONTENT_TYPE or not _CONTENT_TYPE.fullmatch(changed.content_type):
        raise _invalid("push.content_type must be a media type, such as application/json")
    return changed


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_SUBSCRIPTION, message)
