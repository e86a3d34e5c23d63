"""ConsumerGroupHeartbeat (KIP-848): a member joins, renews its session, changes its subscription, gives up or gets
partitions, or leaves.

All decisions go into a `GroupDraft`; the group itself does not change. Epochs in the request: 0 to join, -1 to leave,
-2 for a static member that leaves temporarily.
"""

import msgspec

from conveyor.groups.consumer.assignors import AssignorChoice
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.subscription_patterns import check_pattern
from conveyor.groups.group_commands import ConsumerHeartbeat
from conveyor.groups.records.consumer_member import (
    JOINING_EPOCH,
    TEMPORARY_LEAVE_EPOCH,
    MemberState,
    MemberSubscription,
)
from conveyor.kernel.errors import ErrorKind, RequestError

NOT_GIVEN = -1


def check_heartbeat(command: ConsumerHeartbeat, choice: AssignorChoice) -> None:
    """Check everything that does not depend on the group's state. Raises RequestError."""
    is_joining = command.member_epoch == JOINING_EPOCH
    needs_id = command.requires_member_id or not is_joining
    for value, is_wrong, message in (
        (command.group_id, not command.group_id, "GroupId can't be empty."),
        (command.member_id, needs_id and not command.member_id, "MemberId can't be empty."),
        (command.instance_id, command.instance_id == "", "InstanceId can't be empty."),
        (command.rack_id, command.rack_id == "", "RackId can't be empty."),
        (command.member_epoch, command.member_epoch < TEMPORARY_LEAVE_EPOCH, "MemberEpoch is invalid."),
        (
            command.instance_id,
            command.member_epoch == TEMPORARY_LEAVE_EPOCH and command.instance_id is None,
            "InstanceId can't be null.",
        ),
    ):
        if is_wrong:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{message} It is {value!r}.")
    if is_joining:
        _check_join(command)
    if command.assignor is not None and command.assignor not in choice.names:
        raise RequestError(
            ErrorKind.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.assignor} is not supported. Supported assignors: {', '.join(choice.names)}.",
        )
    if command.pattern:
        check_pattern(command.pattern)


def enter(draft: GroupDraft, command: ConsumerHeartbeat, member_id: str) -> None:
    """Check the member's epoch. A joining static member may replace the member that had its instance id. Raises
    RequestError.
    """
    group = draft.group
    if command.member_epoch != JOINING_EPOCH:
        return check_epoch(group, command)
    static_id = group.static_members.holder(command.instance_id)
    if static_id is not None and static_id != member_id:
        is_released = group.current(static_id).epoch == TEMPORARY_LEAVE_EPOCH
        if not is_released and group.subscriptions[static_id].classic is None:
            raise RequestError(
                ErrorKind.UNRELEASED_INSTANCE_ID, f"instance id '{command.instance_id}' is in use by '{static_id}'"
            )
        replace_static(draft, static_id, member_id)


def check_epoch(group: ConsumerGroup, command: ConsumerHeartbeat) -> None:
    """Check the member's epoch. The previous epoch is accepted too, because the last reply may have been lost.

    Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH.
    """
    group.check_identity(command.member_id, command.instance_id)
    current = group.current(command.member_id)
    if command.member_epoch == current.epoch or command.member_epoch < JOINING_EPOCH:
        return
    is_late = command.member_epoch == current.previous_epoch and command.member_epoch < current.epoch
    if not is_late or command.owned is None or any(place not in current.assigned for place in command.owned):
        raise RequestError(
            ErrorKind.FENCED_MEMBER_EPOCH,
            f"'{command.member_id}' is at epoch {current.epoch}, not {command.member_epoch}: it must abandon all its"
            " partitions and join again",
        )


def leave_temporarily(draft: GroupDraft, member_id: str) -> None:
    """Let a static member leave temporarily. It keeps its assigned partitions; partitions that it was revoking become
    free.
    """
    before = draft.current(member_id)
    after = msgspec.structs.replace(before, epoch=TEMPORARY_LEAVE_EPOCH, state=MemberState.STABLE, revoking=frozenset())
    draft.put_current(member_id, after)


def is_full(command: ConsumerHeartbeat) -> bool:
    """Return whether a heartbeat carries every field.

    Its reply then carries the assignment even if that has not changed.
    """
    subscribes = command.topics is not None or command.pattern is not None
    return command.rebalance_timeout_ms != NOT_GIVEN and subscribes and command.owned is not None


def _check_join(command: ConsumerHeartbeat) -> None:
    if command.rebalance_timeout_ms == NOT_GIVEN:
        raise RequestError(ErrorKind.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if command.owned is None or command.owned:
        raise RequestError(ErrorKind.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if command.topics is None and command.pattern is None:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def replace_static(draft: GroupDraft, old_id: str, member_id: str) -> None:
    """Give the new id of a returning static member the subscription, target and state of its old id."""
    group = draft.group
    draft.drop_member(old_id)
    draft.put_subscription(member_id, group.subscriptions[old_id])
    draft.put_target(member_id, group.target(old_id))
    before = group.current(old_id)
    draft.put_current(member_id, msgspec.structs.replace(before, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH))


def wanted_subscription(old: MemberSubscription | None, command: ConsumerHeartbeat) -> MemberSubscription:
    """Return the member's subscription after a heartbeat. Fields that the heartbeat leaves out are unchanged."""
    if old is None:
        old = MemberSubscription(
            instance_id=None,
            rack_id=None,
            client_id="",
            client_host="",
            topics=frozenset(),
            pattern=None,
            rebalance_timeout_ms=NOT_GIVEN,
            assignor=None,
        )
    given = command.rebalance_timeout_ms
    return MemberSubscription(
        instance_id=old.instance_id if command.instance_id is None else command.instance_id,
        rack_id=old.rack_id if command.rack_id is None else command.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=old.topics if command.topics is None else frozenset(command.topics),
        pattern=old.pattern if command.pattern is None else command.pattern,
        rebalance_timeout_ms=old.rebalance_timeout_ms if given == NOT_GIVEN else given,
        assignor=old.assignor if command.assignor is None else command.assignor,
    )
