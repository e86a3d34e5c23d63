"""Questions about groups that several `conveyor group` commands ask the broker."""

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
    """Whether the group exists. Raises ClientError."""
    return any(listing.group_id == group for listing in listed_groups(admin))


def unknown_group(group: str) -> ClientError:
    return ClientError(f"unknown group '{group}': see 'conveyor group list'")


def refuse_live_members(admin: Any, group: str) -> None:
    """Raises ClientError while the group has members."""
    members = described_groups(admin, [group])[group].members
    if members:
        raise live_members(group, counted(len(members), "live member"))


def live_members(group: str, how_many: str = "live members") -> ClientError:
    return ClientError(f"group '{group}' has {how_many}: stop its consumers first (see 'conveyor group describe')")


def committed_offsets(admin: Any, group: str) -> dict[Place, int]:
    """The offsets at which the group continues, sorted by topic and partition. Raises ClientError."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    found = answer(admin.list_consumer_group_offsets(asked, **request_timeout())[group])
    return {
        (each.topic, each.partition): each.offset
        for each in sorted(found.topic_partitions, key=lambda each: (each.topic, each.partition))
        if each.offset >= 0
    }


def plain(name: Any) -> str:
    """The client's constant for a state or a type, in lower case with spaces."""
    return str(name.name).lower().replace("_", " ")
