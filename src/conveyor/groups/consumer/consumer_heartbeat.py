"""ConsumerGroupHeartbeat (KIP-848): a member joins, lives, changes its mind, gives up partitions, gets some, leaves.

Everything here decides by a draft; the group itself does not change. Epochs in the request: 0 to join, -1 to leave,
-2 for a static member that leaves for a while.
"""

from dataclasses import replace

from conveyor.groups.consumer.assignors import AssignorChoice
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.subscription_patterns import check_pattern
from conveyor.groups.consumer.target_assignment import refresh, retarget
from conveyor.groups.group_commands import ConsumerHeartbeat
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.consumer_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_FOR_A_WHILE_EPOCH,
    MemberState,
    Subscription,
)
from conveyor.kernel.errors import ErrorKind, RequestError

NOT_GIVEN = -1


def check_heartbeat(command: ConsumerHeartbeat, choice: AssignorChoice) -> None:
    """What can be refused without looking at the group. Raises RequestError."""
    is_joining = command.member_epoch == JOINING_EPOCH
    needs_id = command.requires_member_id or not is_joining
    for value, is_wrong, message in (
        (command.group_id, not command.group_id, "GroupId can't be empty."),
        (command.member_id, needs_id and not command.member_id, "MemberId can't be empty."),
        (command.instance_id, command.instance_id == "", "InstanceId can't be empty."),
        (command.rack_id, command.rack_id == "", "RackId can't be empty."),
        (command.member_epoch, command.member_epoch < LEAVING_FOR_A_WHILE_EPOCH, "MemberEpoch is invalid."),
        (
            command.instance_id,
            command.member_epoch == LEAVING_FOR_A_WHILE_EPOCH and command.instance_id is None,
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


def enter(draft: GroupDraft, group: ConsumerGroup, command: ConsumerHeartbeat, member_id: str) -> None:
    """Check that a member may speak; a static one may take the place of its old self. Raises RequestError."""
    if command.member_epoch != JOINING_EPOCH:
        return check_epoch(group, command)
    static_id = None if command.instance_id is None else group.static_members.get(command.instance_id)
    if static_id is not None and static_id != member_id:
        is_released = group.current(static_id).epoch == LEAVING_FOR_A_WHILE_EPOCH
        if not is_released and group.subscriptions[static_id].classic is None:
            raise RequestError(
                ErrorKind.UNRELEASED_INSTANCE_ID, f"instance id '{command.instance_id}' is in use by '{static_id}'"
            )
        replace_static(draft, group, static_id, member_id)


def check_epoch(group: ConsumerGroup, command: ConsumerHeartbeat) -> None:
    """Whether a member knows where it is: at its epoch, or one behind if the last answer may have been lost.

    Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH.
    """
    check_identity(group, command.member_id, command.instance_id)
    current = group.current(command.member_id)
    if command.member_epoch == current.epoch or command.member_epoch < JOINING_EPOCH:
        return
    is_late = command.member_epoch == current.previous_epoch and command.member_epoch < current.epoch
    if not is_late or command.owned is None or not command.owned <= current.assigned:
        raise RequestError(
            ErrorKind.FENCED_MEMBER_EPOCH,
            f"'{command.member_id}' is at epoch {current.epoch}, not {command.member_epoch}: it must abandon all its"
            " partitions and join again",
        )


def check_identity(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    known = group.static_members.get(instance_id) if instance_id is not None else None
    if known is not None and known != member_id:
        raise RequestError(ErrorKind.FENCED_INSTANCE_ID, f"'{instance_id}' is '{known}' now, not '{member_id}'")
    if member_id not in group.subscriptions or (instance_id is not None and known is None):
        raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"group '{group.group_id}' has no member '{member_id}'")


def remove(draft: GroupDraft, member_ids: list[str], topics: KnownTopics, choice: AssignorChoice, now_ms: int) -> None:
    """Take members out. Who remains is told with the next heartbeat; an empty group has no target any more."""
    for member_id in member_ids:
        draft.drop_member(member_id)
    refresh(draft, topics, now_ms, has_changed=True)
    if not draft.subscriptions():
        retarget(draft, choice)


def leave_for_a_while(draft: GroupDraft, member_id: str) -> None:
    """What the static member reads stays its own; what it was giving up is free."""
    before = draft.current(member_id)
    after = replace(before, epoch=LEAVING_FOR_A_WHILE_EPOCH, state=MemberState.STABLE, revoking=frozenset())
    draft.put_current(member_id, after)


def is_leaving(command: ConsumerHeartbeat) -> bool:
    return command.member_epoch in (LEAVING_EPOCH, LEAVING_FOR_A_WHILE_EPOCH)


def is_full(command: ConsumerHeartbeat) -> bool:
    """Whether a member says all that it has to say: then it is told all, too."""
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


def replace_static(draft: GroupDraft, group: ConsumerGroup, old_id: str, member_id: str) -> None:
    """A static member is back under a new id; it takes over what it had."""
    draft.drop_member(old_id)
    draft.put_subscription(member_id, group.subscriptions[old_id])
    draft.put_target(member_id, group.target(old_id))
    before = group.current(old_id)
    draft.put_current(member_id, replace(before, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH))


def wanted_subscription(old: Subscription | None, command: ConsumerHeartbeat) -> Subscription:
    """What a member does not say stays as it was."""
    if old is None:
        old = Subscription(
            instance_id=None,
            rack_id=None,
            client_id="",
            client_host="",
            topics=(),
            pattern=None,
            rebalance_timeout_ms=NOT_GIVEN,
            assignor=None,
        )
    given = command.rebalance_timeout_ms
    return Subscription(
        instance_id=old.instance_id if command.instance_id is None else command.instance_id,
        rack_id=old.rack_id if command.rack_id is None else command.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=old.topics if command.topics is None else tuple(sorted(set(command.topics))),
        pattern=old.pattern if command.pattern is None else command.pattern,
        rebalance_timeout_ms=old.rebalance_timeout_ms if given == NOT_GIVEN else given,
        assignor=old.assignor if command.assignor is None else command.assignor,
    )
