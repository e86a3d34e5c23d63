"""Messages that are leased together have a largest size."""

import pytest

from conveyor.queues.queue_commands import LeaseMessages
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, subscription


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_lease_ends_before_the_message_that_makes_it_too_large(ordering: str) -> None:
    stage = Stage(subscription(ordering=ordering))
    stage.publish(*[(b"%d" % number, b"1234", ()) for number in range(4)])
    leased = [stage.lease(10, max_bytes=max_bytes) for max_bytes in (10, 9, 1)]
    assert [[(lease.message.offset, lease.delivery_count) for lease in leases] for leases in leased] == [
        [(0, 1), (1, 1)], [(2, 1)], [(3, 1)],
    ]  # fmt: skip


def test_message_that_does_not_fit_behind_those_of_another_partition_stays_available() -> None:
    stage = Stage(subscription())
    stage.publish((None, b"12345", ()))
    rest = LeaseMessages(
        subscription=SUBSCRIPTION, count=10, max_bytes=4, visibility_ms=VISIBILITY_MS, at_least_one=False
    )
    assert stage.ask(rest) == []
    assert [lease.delivery_count for lease in stage.lease(10)] == [1]
