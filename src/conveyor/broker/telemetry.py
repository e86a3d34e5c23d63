"""Client telemetry (KIP-714): clients ask which of their metrics are wanted, and push them. Here none are wanted.

Nothing in this broker receives clients' metrics, so a subscription asks for none, and clients ask again after the push
interval whether that has changed. What is pushed nevertheless is checked as the protocol says, and dropped.

    a client                              is told
    asks before the interval is over      THROTTLING_QUOTA_EXCEEDED, unless its last push was refused for its contents
    pushes twice within the interval      THROTTLING_QUOTA_EXCEEDED, unless it is its last push
    pushes after its last push            INVALID_REQUEST
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID
from zlib import crc32

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.settings import ClientSettings

MAX_INSTANCES = 16_384
"""Clients remembered, the longest silent goes first. One that was forgotten is taken for a new one."""

COMPRESSION_TYPES = (4, 3, 1, 2)
"""What a push may be compressed with, the best first: zstd, lz4, gzip, snappy. 0, for none, is always taken."""

_ASK_AGAIN = {ErrorKind.UNKNOWN_SUBSCRIPTION_ID, ErrorKind.UNSUPPORTED_COMPRESSION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a client is asked for: no metrics, at this interval."""

    client_instance_id: UUID
    subscription_id: int
    push_interval_ms: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What a client pushes. `size_bytes` as it came, compressed or not."""

    client_instance_id: UUID | None
    subscription_id: int
    terminating: bool
    compression_type: int
    size_bytes: int


@dataclass(slots=True)
class _Instance:
    """What is remembered of one client."""

    asked_ms: int | None = None
    pushed_ms: int | None = None
    terminating: bool = False
    refused_for: ErrorKind | None = None


class Telemetry:
    """See the module's docstring."""

    def __init__(self, new_id: Callable[[], UUID], settings: ClientSettings) -> None:
        self._new_id = new_id
        self._interval_ms = settings.telemetry_push_interval_ms
        self._max_bytes = settings.telemetry_max_bytes
        self._instances: OrderedDict[UUID, _Instance] = OrderedDict()

    def subscribe(self, client_instance_id: UUID | None, now_ms: int) -> Subscription:
        """What a client is asked for; None: it is new. Raises RequestError (THROTTLING_QUOTA_EXCEEDED)."""
        identity = client_instance_id or self._new_id()
        instance = self._instance(identity)
        last_ms = max((each for each in (instance.asked_ms, instance.pushed_ms) if each is not None), default=None)
        if self._is_early(last_ms, now_ms) and instance.refused_for not in _ASK_AGAIN:
            raise self._too_early(identity)
        instance.asked_ms = now_ms
        instance.refused_for = None
        return Subscription(
            client_instance_id=identity,
            subscription_id=self._subscription_id(identity),
            push_interval_ms=self._interval_ms,
            max_bytes=self._max_bytes,
        )

    def push(self, push: Push, now_ms: int) -> None:
        """Take metrics, and drop them. Raises RequestError."""
        if push.client_instance_id is None:
            raise RequestError(ErrorKind.INVALID_REQUEST, "metrics come with the client's instance id")
        instance = self._instance(push.client_instance_id)
        try:
            self._check(push, instance, push.client_instance_id, now_ms)
        except RequestError as error:
            instance.refused_for = error.kind
            raise
        finally:
            instance.terminating = instance.terminating or push.terminating
        instance.refused_for = None

    def _check(self, push: Push, instance: _Instance, identity: UUID, now_ms: int) -> None:
        if instance.terminating:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"client instance {identity} has pushed for the last time")
        first_since_asked = instance.asked_ms is not None and instance.asked_ms > (instance.pushed_ms or 0)
        if not first_since_asked and self._is_early(instance.pushed_ms, now_ms):
            if not push.terminating:
                raise self._too_early(identity)
        else:
            instance.pushed_ms = now_ms
        if push.subscription_id != self._subscription_id(identity):
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION_ID, f"ask for the subscription of {identity} again")
        if push.compression_type not in (0, *COMPRESSION_TYPES):
            raise RequestError(ErrorKind.UNSUPPORTED_COMPRESSION, f"compression type {push.compression_type}")
        if push.size_bytes > self._max_bytes:
            raise RequestError(
                ErrorKind.TELEMETRY_TOO_LARGE, f"{push.size_bytes} bytes of metrics: {self._max_bytes} are taken"
            )

    def _instance(self, identity: UUID) -> _Instance:
        instance = self._instances.setdefault(identity, _Instance())
        self._instances.move_to_end(identity)
        if len(self._instances) > MAX_INSTANCES:
            self._instances.popitem(last=False)
        return instance

    def _is_early(self, last_ms: int | None, now_ms: int) -> bool:
        return last_ms is not None and now_ms - last_ms < self._interval_ms

    def _too_early(self, identity: UUID) -> RequestError:
        return RequestError(
            ErrorKind.THROTTLING_QUOTA_EXCEEDED,
            f"client instance {identity} is early: {self._interval_ms} ms go between",
        )

    def _subscription_id(self, identity: UUID) -> int:
        """The same for a client wherever and whenever it asks, as long as it is asked for the same."""
        return crc32(self._interval_ms.to_bytes(4, "big") + identity.bytes) - (1 << 31)
