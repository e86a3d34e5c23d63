"""What the `conveyor group` commands ask the broker about a group."""

from typing import Any

from conveyor.cli.records.offsets import Place
from conveyor.cli.terminal.kafka_client import ClientError, answer, counted, request_timeout


def listed_groups(admin: Any) -> list[Any]:
    """The client's listings (`group_id`, `state`, `type`), by name. Raises ClientError."""
    found = answer(admin.list_consumer_groups(**request_timeout()))
    for error in found.errors:
        raise ClientError(error.args[0].str()) from error
    return sorted(found.valid, key=lambda each: str(each.group_id))


def described_groups(admin: Any, groups: list[str]) -> dict[str, Any]:
    """The client's descriptions, by name. Raises ClientError."""
    if not groups:
        return {}
    futures = admin.describe_consumer_groups(groups, **request_timeout())
    return {group: answer(futures[group]) for group in groups}


def is_there(admin: Any, group: str) -> bool:
    """Whether the broker knows the group. Raises ClientError."""
    return any(each.group_id == group for each in listed_groups(admin))


def unknown_group(group: str) -> ClientError:
    return ClientError(f"unknown group '{group}': see 'conveyor group list'")


def refuse_live_members(admin: Any, group: str) -> None:
    """Raises ClientError while somebody reads as a member of the group."""
    members = described_groups(admin, [group])[group].members
    if members:
        raise live_members(group, counted(len(members), "live member"))


def live_members(group: str, how_many: str = "live members") -> ClientError:
    return ClientError(f"group '{group}' has {how_many}: stop its consumers first (see 'conveyor group describe')")


def committed_offsets(admin: Any, group: str) -> dict[Place, int]:
    """Where the group goes on, by topic and partition, in order. Raises ClientError."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    found = answer(admin.list_consumer_group_offsets(asked, **request_timeout())[group])
    return {
        (each.topic, each.partition): each.offset
        for each in sorted(found.topic_partitions, key=lambda each: (each.topic, each.partition))
        if each.offset >= 0
    }


def plain(name: Any) -> str:
    """A state or a type of the client's, in words."""
    return str(name.name).lower().replace("_", " ")
