"""The services of one room, for a part that needs neither a cluster nor a store."""

from concurrent.futures import Executor
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.services import Services
from conveyor.broker.tasks import Tasks
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import Clock
from conveyor.settings.tree import Settings


class Session:
    """The session of a broker, whose lease the test decides on."""

    def __init__(self) -> None:
        self.has_lease = True

    def holds_lease(self) -> bool:
        return self.has_lease


def room_services(
    clock: Clock,
    tasks: Tasks | None = None,
    *,
    session: Session | None = None,
    metadata: Metadata | None = None,
    me: int = 1,
) -> Services:
    """Return services without threads, and without an image if no metadata is given."""
    services = Services(
        settings=Settings(),
        clock=clock,
        threads=cast("Executor", None),
        tasks=tasks or cast("Tasks", None),
        metadata=metadata or cast("Metadata", SimpleNamespace(session=session or Session())),
        new_id=uuid4,
    )
    services.me = NodeId(me)
    services.own_caller = Caller.broker(services.me)
    return services
