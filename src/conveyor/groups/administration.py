"""Administrative requests about groups: list, describe, delete. The caller need not be a group member."""

import msgspec

from conveyor.groups.classic.classic_group import ClassicGroup, GroupState
from conveyor.groups.classic.classic_groups import ClassicGroups
from conveyor.groups.classic.embedded_protocol import PROTOCOL_TYPE
from conveyor.groups.classic.joining import check_group_id
from conveyor.groups.committed_offsets import CommittedOffsets
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.consumer_groups import ConsumerGroups
from conveyor.groups.group_commands import DeleteOffsets, ListGroups
from conveyor.groups.records.group_records import MemberValue, OffsetKey, offset_record
from conveyor.groups.replies import (
    Deleted,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    ListedGroup,
    ListedGroups,
    OffsetsDeleted,
)
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Token

_CLASSIC, _CONSUMER = "classic", "consumer"


class Administration:
    """Answers administrative commands over both protocols. A group that has only committed offsets counts as an empty
    classic group.
    """

    def __init__(self, classic: ClassicGroups, consumers: ConsumerGroups, offsets: CommittedOffsets) -> None:
        self._classic = classic
        self._consumers = consumers
        self._offsets = offsets

    def group_ids(self) -> set[str]:
        """Return the groups that exist, in either protocol or with committed offsets."""
        return self._classic.group_ids() | self._consumers.group_ids() | self._offsets.group_ids()

    def list_groups(self, command: ListGroups) -> ListedGroups:
        """Return those of the command's groups that exist and match its filters."""
        groups = [(group_id, self._find(group_id)) for group_id in command.group_ids]
        listings = [_listed(group_id, group) for group_id, group in groups if group is not None]
        return ListedGroups(groups=tuple(listed for listed in listings if _is_wanted(listed, command)))

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a classic group. Raises RequestError (GROUP_ID_NOT_FOUND)."""
        group = self._existing(group_id)
        if isinstance(group, ConsumerGroup):
            raise RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
        is_stable = group.state is GroupState.STABLE
        members = [member.value(group.protocol_name) for member in group.members]
        return DescribedGroup(
            state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name if is_stable else "",
            members=tuple(member if is_stable else _without_assignment(member) for member in members),
        )

    def describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        """Describe a group of the consumer protocol. Raises RequestError: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND."""
        check_group_id(group_id)
        group = self._existing(group_id)
        if not isinstance(group, ConsumerGroup):
            raise RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        members = [
            DescribedConsumer(
                member_id=member_id,
                subscription=subscription,
                current=group.current(member_id),
                target=group.target(member_id),
            )
            for member_id, subscription in group.subscriptions.items()
        ]
        return DescribedConsumerGroup(
            state=group.state,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=self._consumers.choice.elect(
                subscription.assignor for subscription in group.subscriptions.values()
            ),
            members=tuple(members),
        )

    def delete(self, group_id: str, token: Token, decision: Decision) -> None:
        """Delete a group without members and its committed offsets, or the next part of these. Raises RequestError:
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        group = self._existing(group_id)
        is_busy = group.subscriptions if isinstance(group, ConsumerGroup) else group.state is not GroupState.EMPTY
        if is_busy:
            raise _not_empty(group_id)
        tombstones, is_last = self._offsets.tombstones(group_id)
        decision.records += tombstones
        if is_last:
            decision.records += self._classic.forget(group_id)
            decision.records += self._consumers.forget(group_id)
        decision.reply(token, Deleted(is_complete=is_last))

    def delete_offsets(self, command: DeleteOffsets, token: Token, decision: Decision) -> None:
        """Delete committed offsets of topics to which no member subscribes; a topic that is still read gets an error of
        its own.

        Raises RequestError: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        check_group_id(command.group_id)
        group = self._existing(command.group_id)
        if isinstance(group, ClassicGroup) and group.members and group.protocol_type != PROTOCOL_TYPE:
            raise _not_empty(command.group_id)
        errors = list[RequestError | None]()
        stored = {*self._offsets.of(command.group_id), *self._offsets.pending(command.group_id)}
        read = group.subscribed_topics()
        for topic, partition in command.partitions:
            is_read = read is None or topic in read
            errors.append(_is_read(command.group_id, topic) if is_read else None)
            if not is_read and (topic, partition) in stored:
                key = OffsetKey(group_id=command.group_id, topic=topic, partition=partition)
                decision.records.append(offset_record(key, None))
        decision.reply(token, OffsetsDeleted(errors=tuple(errors)))

    def _existing(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        group = self._find(group_id)
        if group is None:
            raise RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        group = self._consumers.find(group_id) or self._classic.find(group_id)
        if group is None and (self._offsets.of(group_id) or self._offsets.pending(group_id)):
            return ClassicGroup(group_id)
        return group


def _listed(group_id: str, group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group_id=group_id, protocol_type=PROTOCOL_TYPE, state=group.state, group_type=_CONSUMER)
    return ListedGroup(
        group_id=group_id, protocol_type=group.protocol_type, state=group.state.value, group_type=_CLASSIC
    )


def _without_assignment(member: MemberValue) -> MemberValue:
    return msgspec.structs.replace(member, subscription=b"", assignment=b"")


def _is_wanted(group: ListedGroup, command: ListGroups) -> bool:
    return (not command.states or group.state.lower() in command.states) and (
        not command.types or group.group_type.lower() in command.types
    )


def _is_read(group_id: str, topic: str) -> RequestError:
    return RequestError(
        ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC, f"group '{group_id}' has members subscribed to topic '{topic}'"
    )


def _not_empty(group_id: str) -> RequestError:
    return RequestError(ErrorKind.NON_EMPTY_GROUP, f"group '{group_id}' has members")
