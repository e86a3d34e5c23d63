"""Names of partitions, ids of gateways."""

from uuid import UUID, uuid4

from conveyor.kernel.ids import FIRST_GATEWAY_ID, TopicPartition, gateway_id, is_gateway


def test_topic_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("orders-eu", 3)) == f"{TopicPartition('orders-eu', 3)}" == "orders-eu-3"


def test_topic_partition_is_its_tuple() -> None:
    assert {TopicPartition("orders", 3): 1}[("orders", 3)] == 1  # type: ignore[index]


def test_gateway_has_an_id_that_no_broker_can_have() -> None:
    random_ids = [UUID(int=0), UUID(int=(1 << 128) - 1), *(uuid4() for _ in range(100))]
    assert all(FIRST_GATEWAY_ID <= gateway_id(random_id) < 1 << 31 for random_id in random_ids)
    assert all(is_gateway(gateway_id(random_id)) for random_id in random_ids)
    assert not is_gateway(FIRST_GATEWAY_ID - 1)
