"""The port by which messages are sent to push targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from conveyor.queues.push.push_url import PushUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """A POST request. headers: without Host and Content-Length. allows_private: addresses that are not public may be
    connected to.
    """

    url: PushUrl
    headers: tuple[tuple[str, str], ...]
    body: bytes
    allows_private: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAnswer:
    """The head of an answer, as far as it counts. retry_after: the values of its Retry-After headers."""

    status: int
    retry_after: tuple[str, ...] = ()


class PushFailed(Exception):  # noqa: N818 - named for what it is
    """A request got no answer. is_sent: the target may have got it; otherwise there was no connection. The text is for
    those who may see the subscription.
    """

    def __init__(self, reason: str, *, is_sent: bool) -> None:
        super().__init__(reason)
        self.is_sent = is_sent


class PushClient(Protocol):
    """Sends requests. It does not follow redirects, and repeats no request whose target may have got it before, unless
    that was on a connection of an earlier request.
    """

    async def post(self, request: PushRequest) -> PushAnswer:
        """Return the answer to a request; the caller limits the time by a cancellation. Raises PushFailed, also after
        a cancellation if there was no connection until then.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


OpenPushClient = Callable[[], PushClient]
"""Returns a client. It may take long, so a broker without push targets does not call it."""


def no_push_client() -> PushClient:
    """Return a client that reaches no target."""
    return _NoPushClient()


class _NoPushClient:
    async def post(self, request: PushRequest) -> PushAnswer:
        raise PushFailed("this broker has no client for push targets", is_sent=False)

    def close(self) -> None:
        pass
