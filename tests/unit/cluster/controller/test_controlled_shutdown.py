"""A broker stops: others lead its bundles first."""

from conveyor.cluster.controller.controlled_shutdown import ShutdownRequest, stopping_broker
from conveyor.cluster.image import NO_LEADER, ClusterImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import NodeId
from tests.unit.cluster.controller.clusters import SETTINGS, cluster, leadership, live, observed, partition, refused
from tests.unit.cluster.images import changed

REQUEST = ShutdownRequest(node_id=NodeId(1), broker_epoch=1)


def stopped(image: ClusterImage) -> ClusterImage:
    after = changed(image, *stopping_broker(image, REQUEST, SETTINGS))
    assert stopping_broker(after, REQUEST, SETTINGS) == []
    return after


def test_leaderships_move_and_the_broker_leaves_isrs_but_never_as_the_last() -> None:
    image = stopped(cluster(partition([1, 2]), partition([2, 1]), partition([1, 2], [1]), partition([1])))
    assert image.brokers[NodeId(1)].is_stopping
    assert [leadership(state) for state in image.topics["t"].partitions] == [
        (2, 6, (2,), ()),
        (2, 5, (2,), ()),
        (1, 5, (1,), ()),
        (1, 5, (1,), ()),
    ]


def test_broker_that_leaves_a_small_isr_is_eligible() -> None:
    image = stopped(cluster(partition([1, 2]), config={"min.insync.replicas": "2"}))
    assert leadership(image.topics["t"].partitions[0]) == (2, 6, (2,), (1,))


def test_last_member_is_still_in_the_isr_after_the_stop() -> None:
    image = observed(stopped(cluster(partition([1, 2], [1]))), live(2))
    assert leadership(image.topics["t"].partitions[0]) == (NO_LEADER, 6, (1,), ())


def test_stopping_broker_is_not_elected() -> None:
    image = observed(stopped(cluster(partition([2, 1, 3]))), live(1, 3))
    assert leadership(image.topics["t"].partitions[0]) == (3, 6, (3,), ())


def test_shutdown_in_parts_ends_as_the_whole() -> None:
    image = cluster(*[partition([1, 2])] * 5)
    parts = image
    while changes := stopping_broker(parts, REQUEST, SETTINGS, most_bundles=2):
        parts = changed(parts, *changes)
    assert parts.topics == stopped(image).topics


def test_shutdown_of_an_earlier_registration_is_refused() -> None:
    stale = ShutdownRequest(node_id=NodeId(1), broker_epoch=0)
    assert refused(stopping_broker, cluster(), stale, SETTINGS) is ErrorKind.STALE_BROKER_EPOCH
    unknown = ShutdownRequest(node_id=NodeId(9), broker_epoch=1)
    assert refused(stopping_broker, cluster(), unknown, SETTINGS) is ErrorKind.BROKER_ID_NOT_REGISTERED
