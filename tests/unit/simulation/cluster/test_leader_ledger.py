"""Which processes may lead a partition in one leader epoch."""

from uuid import UUID

import pytest

from simulation.cluster.simulated_cluster import LeaderLedger
from simulation.ledger import InvariantBroken

TOPIC_ID = UUID(int=1)


def test_an_epoch_of_a_lone_broker_continues_only_after_a_clean_stop() -> None:
    ledger = LeaderLedger(is_alone=True)
    ledger.note(TOPIC_ID, 0, 0, (1, 1))
    ledger.note(TOPIC_ID, 0, 0, (1, 2))
    ledger.note_crash((1, 2))
    ledger.note(TOPIC_ID, 0, 1, (1, 3))
    with pytest.raises(InvariantBroken, match="SingleLeaderPerEpoch"):
        ledger.note(TOPIC_ID, 0, 0, (1, 3))


def test_an_epoch_of_a_cluster_has_one_process() -> None:
    ledger = LeaderLedger(is_alone=False)
    ledger.note(TOPIC_ID, 0, 0, (1, 1))
    ledger.note(TOPIC_ID, 1, 0, (2, 1))
    assert ledger.of(TOPIC_ID, 1, 0) == 2
    with pytest.raises(InvariantBroken, match="SingleLeaderPerEpoch"):
        ledger.note(TOPIC_ID, 0, 0, (1, 2))
