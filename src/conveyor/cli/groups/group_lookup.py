"""Requests about groups that several `conveyor group` commands share."""

from typing import Any

from conveyor.cli.records.offsets import Place
from conveyor.cli.terminal.kafka_client import ClientError, answer, counted, request_timeout


def list_groups(admin: Any) -> list[Any]:
    """Return the client's listings (`group_id`, `state`, `type`), by name. Raises ClientError."""
    listing = answer(admin.list_consumer_groups(**request_timeout()))
    for error in listing.errors:
        raise ClientError(error.args[0].str()) from error
    return sorted(listing.valid, key=lambda group: str(group.group_id))


def describe_groups(admin: Any, groups: list[str]) -> dict[str, Any]:
    """Return the client's descriptions, by name. Raises ClientError."""
    if not groups:
        return {}
    futures = admin.describe_consumer_groups(groups, **request_timeout())
    return {group: answer(futures[group]) for group in groups}


def group_exists(admin: Any, group: str) -> bool:
    """Return whether the group exists. Raises ClientError."""
    return any(listing.group_id == group for listing in list_groups(admin))


def unknown_group_error(group: str) -> ClientError:
    return ClientError(f"unknown group '{group}': see 'conveyor group list'")


def refuse_live_members(admin: Any, group: str) -> None:
    """Raise ClientError while the group has members."""
    members = describe_groups(admin, [group])[group].members
    if members:
        raise live_members_error(group, counted(len(members), "live member"))


def live_members_error(group: str, how_many: str = "live members") -> ClientError:
    return ClientError(f"group '{group}' has {how_many}: stop its consumers first (see 'conveyor group describe')")


def committed_offsets(admin: Any, group: str) -> dict[Place, int]:
    """Return the group's committed offsets, sorted by topic and partition. Raises ClientError."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    request = [ConsumerGroupTopicPartitions(group)]
    group_offsets = answer(admin.list_consumer_group_offsets(request, **request_timeout())[group])
    return {
        (partition.topic, partition.partition): partition.offset
        for partition in sorted(
            group_offsets.topic_partitions, key=lambda partition: (partition.topic, partition.partition)
        )
        if partition.offset >= 0
    }


def display_name(name: Any) -> str:
    """Return the client's constant for a state or a type as text: lower case, with spaces."""
    return str(name.name).lower().replace("_", " ")
