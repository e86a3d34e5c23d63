"""The services that every room of a broker uses: its identity, settings, clock, threads, tasks, ids and metadata."""

from concurrent.futures import Executor
from contextlib import AsyncExitStack

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.slices import Slices
from conveyor.broker.tasks import Tasks
from conveyor.broker.time_lookups import TimeLookups
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import NewId, NodeId
from conveyor.kernel.ports import Clock
from conveyor.kernel.signal import Signal
from conveyor.settings.tree import Settings


class Services:
    """See the module's docstring.

    own_caller: of what this broker does on its own account. settings: in force now. They change at run time, so read
    them where they are used. settings_changed: tells of a change, with the former settings. threads: for work that
    blocks. slices: share the event loop among long requests. lookups: share the threads among lookups by time. serving:
    the broker closes it when it stops serving. A part that has to stop then enters its stop when the part is made, or
    started; the last entry stops first.
    """

    __slots__ = (
        "clock", "lookups", "me", "metadata", "new_id", "own_caller", "serving", "settings", "settings_changed",
        "slices", "tasks", "threads",
    )  # fmt: skip

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
        metadata: Metadata,
        new_id: NewId,
    ) -> None:
        self.me = NodeId(settings.broker.node_id)
        self.own_caller = Caller.broker(self.me)
        self.settings = settings
        self.settings_changed: Signal[Settings] = Signal()
        self.clock = clock
        self.threads = threads
        self.tasks = tasks
        self.metadata = metadata
        self.new_id = new_id
        self.slices = Slices(threads, tasks)
        self.lookups = TimeLookups(threads)
        self.serving = AsyncExitStack()

    def use(self, settings: Settings) -> None:
        """Put other settings into force."""
        before, self.settings = self.settings, settings
        self.settings_changed.emit(before)
