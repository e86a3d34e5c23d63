"""The client that stands behind the calls of a story."""

from conveyor.kernel.access.caller import ANONYMOUS, Caller, Listener

CALLER = Caller(ANONYMOUS, "192.0.2.1", Listener.KAFKA, 1)
