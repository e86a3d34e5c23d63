"""The total of all holders stays below the limit, at the expense of the largest holder."""

from conveyor.queues.delivery.memory_budget import MemoryBudget


class Keeper:
    """Holds entries of given sizes, and discards the oldest."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.sizes: list[int] = []

    def keep(self, size: int) -> None:
        self.sizes.append(size)
        self._budget.add(self, size)

    def shed(self) -> int:
        return self.sizes.pop(0)


def test_the_largest_gives_up_its_oldest_first() -> None:
    budget = MemoryBudget(100)
    small, large = Keeper(budget), Keeper(budget)
    small.keep(10)
    for size in range(1, 21):
        large.keep(size)
    assert small.sizes == [10]
    assert large.sizes == [16, 17, 18, 19, 20]
    assert budget.total == 100


def test_holders_of_one_size_share_the_limit() -> None:
    budget = MemoryBudget(90)
    keepers = [Keeper(budget) for _ in range(3)]
    for _ in range(100):
        for keeper in keepers:
            keeper.keep(1)
    assert budget.total == 90
    assert all(16 <= len(keeper.sizes) <= 64 for keeper in keepers)


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    budget = MemoryBudget(10)
    keeper = Keeper(budget)
    keeper.keep(11)
    assert (keeper.sizes, budget.total) == ([], 0)


def test_holder_that_is_forgotten_counts_no_more() -> None:
    budget = MemoryBudget(10)
    gone, other = Keeper(budget), Keeper(budget)
    gone.keep(6)
    budget.forget(gone)
    other.keep(10)
    assert (sum(other.sizes), budget.total) == (10, 10)
