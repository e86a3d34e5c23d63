"""Looks up the addresses of push targets, in threads of its own: a slow name server delays nothing else of the broker.

All addresses of a name must be permitted, and the caller connects to one of them: a name is not looked up again between
the check and the connection.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from conveyor.adapters.push.public_addresses import is_loopback, is_public
from conveyor.broker.queues.pushing.push_client import PushFailed
from conveyor.queues.push.push_url import PushUrl

MAX_ADDRESSES = 16
_THREADS = 4

LookUp = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host name; it may block. Raises OSError."""


def system_addresses(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name by the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class TargetAddresses:
    def __init__(self, look_up: LookUp = system_addresses) -> None:
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(_THREADS, "push-names")

    async def of(self, url: PushUrl, *, allows_private: bool) -> Sequence[str]:
        """Return the addresses that may be connected to. Raises PushFailed.

        The text of a refusal does not say which address it was: a name that a client gives tells nothing about the
        broker's network.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, self._look_up, url.host, url.port)
        except (OSError, UnicodeError) as error:
            raise PushFailed("the host of the target has no address", is_sent=False) from error
        if not found:
            raise PushFailed("the host of the target has no address", is_sent=False)
        if not allows_private and not all(map(is_public, found)):
            raise PushFailed("the target has an address that is not public: see push.allow_private", is_sent=False)
        if not url.is_encrypted and not all(map(is_loopback, found)):
            raise PushFailed("the target is another machine, and its URL is not https", is_sent=False)
        return found[:MAX_ADDRESSES]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
