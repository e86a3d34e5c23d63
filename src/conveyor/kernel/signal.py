"""Tells listeners of an event, in the order in which they have begun to listen."""

from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Signal(Generic[Event]):
    """See the module's docstring. A listener may stop listening, or add other listeners, while it is called."""

    __slots__ = ("_count", "_listeners")

    def __init__(self) -> None:
        self._count = 0
        self._listeners: dict[int, Callable[[Event], None]] = {}

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call a function with each event from now on. Returns a function that ends this."""
        key = self._count
        self._count += 1
        self._listeners[key] = listener

        def leave() -> None:
            self._listeners.pop(key, None)

        return leave

    def next(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call a function with the next event only. Returns a function that ends this before."""

        def call_once(event: Event) -> None:
            leave()
            listener(event)

        leave = self.listen(call_once)
        return leave

    def emit(self, event: Event) -> None:
        """Call all listeners. Those that begin to listen meanwhile are called for the next event."""
        for key in list(self._listeners):
            listener = self._listeners.get(key)
            if listener is not None:
                listener(event)
