"""The troubles that only some stories have find what no other fault finds: each bug that is planted here breaks an
invariant within so many stories with one trouble.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from conveyor.broker.metadata import dynamic_settings
from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.cluster.dynamic_config import broker_owner, with_broker_texts
from conveyor.cluster.setting_names import broker_settings
from conveyor.kernel.errors import ErrorKind
from conveyor.testing.simulation.cluster.cluster_schedule import make_cluster_schedule
from conveyor.testing.simulation.cluster.cluster_story import play_cluster
from tests.simulation.seeds import check_found
from tests.simulation.test_planted_cluster_bugs import LOST

SEEDS = 200


def accept_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker follows a default of its own by which all replicas must agree."""

    def of_broker(self: DynamicSettings, node_id: int | None) -> dynamic_settings._Place:
        return dynamic_settings._Place(
            owner=broker_owner(node_id),
            known=broker_settings(),
            layered=lambda layers, texts: with_broker_texts(layers, node_id, texts),
            invalid=ErrorKind.INVALID_REQUEST,
        )

    monkeypatch.setattr(dynamic_settings, "check_of_one_broker", lambda _: None)
    monkeypatch.setattr(DynamicSettings, "_of_broker", of_broker)


class Found(NamedTuple):
    """trouble: that the stories have. first_seed: known to find the bug. invariants: one of them breaks."""

    trouble: str
    first_seed: int
    invariants: set[str]


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[Plant, Found] = {
    accept_own_defaults: Found("own_defaults", 0, LOST),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    trouble, first_seed, invariants = PLANTED[plant]
    check_found(
        lambda seed: play_cluster(make_cluster_schedule(seed, (trouble,))),
        range(first_seed, first_seed + SEEDS),
        invariants,
    )
