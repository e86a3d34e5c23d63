"""The memory that one exchange takes of the budgets that all share."""

from collections.abc import Callable

from conveyor.kernel.request_budget import RequestBudget, Share
from conveyor.kernel.response_budget import BudgetFull, ResponseBudget


class ExchangeMemory:
    """See the module's docstring. All of it is given back by `release`.

    counted_bytes: of the request, besides its share. held_bytes: for making the response. share: see `ask`.
    """

    __slots__ = ("_requests", "_responses", "counted_bytes", "held_bytes", "share")

    def __init__(self, requests: RequestBudget, responses: ResponseBudget) -> None:
        self._requests, self._responses = requests, responses
        self.counted_bytes = self.held_bytes = 0
        self.share: Share | None = None

    @property
    def is_full(self) -> bool:
        """Whether responses use all the memory for responses."""
        return self._responses.is_full

    def weigh(self, size_bytes: int) -> None:
        """Count memory for the request besides its share."""
        self.counted_bytes += size_bytes
        self._requests.count_lasting(size_bytes)

    def count_received(self, received_bytes: int) -> bool:
        """Count what has been received of a body without a share. Returns whether all such bodies exceed the limit."""
        self.weigh(received_bytes - self.counted_bytes)
        return self._requests.is_full

    def ask(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """Ask for the share of a large body. Returns whether it is granted at once; `granted` is called in any case."""
        self.share = self._requests.ask(size_bytes, granted, self.counted_bytes)
        if self.share.granted is not None:
            return False
        self.use_share()
        return True

    def use_share(self) -> None:
        """Let the share, which is granted, cover what was counted."""
        self.weigh(-self.counted_bytes)

    def hold(self, size_bytes: int) -> None:
        """Hold the memory for making the response. Raises BudgetFull."""
        if self._responses.is_full:
            raise BudgetFull
        self._responses.used_bytes += size_bytes
        self.held_bytes += size_bytes

    def release(self) -> None:
        """Give back all of it."""
        if self.held_bytes:
            self._responses.used_bytes -= self.held_bytes
            self.held_bytes = 0
        if self.counted_bytes:
            self.weigh(-self.counted_bytes)
        share, self.share = self.share, None
        if share is not None:
            self._requests.give_back(share)
