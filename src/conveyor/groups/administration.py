"""What an administrator asks of groups: list, describe, delete. Nothing here needs to be a member."""

from conveyor.groups.classic_group import ClassicGroup, Decision, GroupState
from conveyor.groups.classic_groups import ClassicGroups, check_group_id
from conveyor.groups.commands import DeleteOffsets, ListGroups
from conveyor.groups.offsets import CommittedOffsets
from conveyor.groups.records import OffsetKey, offset_record
from conveyor.groups.replies import Deleted, DescribedGroup, ListedGroup, ListedGroups, OffsetsDeleted
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.machine import Token

_CLASSIC = "classic"


def list_groups(command: ListGroups, classic: ClassicGroups, offsets: CommittedOffsets) -> ListedGroups:
    """The groups that pass the filters; one that has nothing but offsets is an empty classic group."""
    found = []
    for group_id in sorted(classic.group_ids() | offsets.group_ids()):
        group = classic.find(group_id) or ClassicGroup(group_id)
        found.append(
            ListedGroup(
                group_id=group_id,
                protocol_type=group.protocol_type,
                state=group.state.value,
                group_type=_CLASSIC,
            )
        )
    return ListedGroups(groups=tuple(each for each in found if _is_wanted(each, command)))


def describe_group(group_id: str, classic: ClassicGroups, offsets: CommittedOffsets) -> DescribedGroup:
    """Raises RequestError (GROUP_ID_NOT_FOUND)."""
    group = _existing(group_id, classic, offsets)
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if is_stable else "",
        members=tuple(each.described(group.protocol_name if is_stable else None) for each in group.members.values()),
    )


def delete_group(
    group_id: str, token: Token, classic: ClassicGroups, offsets: CommittedOffsets, decision: Decision
) -> None:
    """Raises RequestError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    group = _existing(group_id, classic, offsets)
    if group.state is not GroupState.EMPTY:
        raise _not_empty(group_id)
    decision.records += offsets.tombstones(group_id)
    decision.records += classic.forget(group_id)
    decision.reply(token, Deleted())


def delete_offsets(
    command: DeleteOffsets, token: Token, classic: ClassicGroups, offsets: CommittedOffsets, decision: Decision
) -> None:
    """Raises RequestError: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    check_group_id(command.group_id)
    group = _existing(command.group_id, classic, offsets)
    if group.members and not group.is_of_consumers:
        raise _not_empty(command.group_id)
    known, errors = offsets.of(command.group_id), list[RequestError | None]()
    for topic, partition in command.partitions:
        if group.reads(topic):
            errors.append(
                RequestError(
                    ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC, f"members of group '{command.group_id}' read topic '{topic}'"
                )
            )
            continue
        if (topic, partition) in known:
            key = OffsetKey(group_id=command.group_id, topic=topic, partition=partition)
            decision.records.append(offset_record(key, None))
        errors.append(None)
    decision.reply(token, OffsetsDeleted(errors=tuple(errors)))


def _existing(group_id: str, classic: ClassicGroups, offsets: CommittedOffsets) -> ClassicGroup:
    group = classic.find(group_id)
    if group is None:
        if not offsets.of(group_id):
            raise RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return ClassicGroup(group_id)
    return group


def _is_wanted(group: ListedGroup, command: ListGroups) -> bool:
    return (not command.states or group.state.lower() in command.states) and (
        not command.types or group.group_type.lower() in command.types
    )


def _not_empty(group_id: str) -> RequestError:
    return RequestError(ErrorKind.NON_EMPTY_GROUP, f"group '{group_id}' has members")
