"""Names of partitions."""

from conveyor.kernel.ids import TopicPartition


def test_topic_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("orders-eu", 3)) == f"{TopicPartition('orders-eu', 3)}" == "orders-eu-3"


def test_topic_partition_is_its_tuple() -> None:
    assert {TopicPartition("orders", 3): 1}[("orders", 3)] == 1  # type: ignore[index]
