"""Checks that leased messages come in the order of a subscription: by priority, by offset, and group by group."""

from tests.unit.queues.model import Known, QueueModel


def check_priorities(sequence: list[Known], rest: list[Known], *, by_group: bool) -> None:
    """Those who were taken were the first: the most urgent before the others, and then by their offsets."""
    every = sequence + rest
    ranks = [-each.priority for each in sequence]
    assert ranks == sorted(ranks)
    assert not sequence or all(-each.priority >= ranks[-1] for each in rest)
    for group in {each.group for each in every} if by_group else {None}:
        mine = [(-each.priority, each.offset) for each in sequence if group in (None, each.group)]
        others = [(-each.priority, each.offset) for each in rest if group in (None, each.group)]
        assert mine == sorted(mine)
        assert not mine or all(each > mine[-1] for each in others)


def check_batches(model: QueueModel, sequence: list[Known], left: list[Known]) -> None:
    """No message is left that a call could have delivered, alone or behind those of its key that it has delivered."""
    together = {each.offset for each in sequence}
    for each in left:
        is_certain = not any(other.came_back for other in model if other.key == each.key)
        assert not model.is_first_of_key(each)
        assert not (is_certain and model.is_first_of_key(each, together)), "a message was left out of a batch"


def check_turns(sequence: list[Known]) -> None:
    """No group has two turns while another one waits. A message that is dropped when it is met takes a turn, too."""
    for place, each in enumerate(sequence):
        same = [later for later in sequence[place + 1 :] if later.priority == each.priority]
        groups = [later.group for later in same]
        if each.group in groups:
            between = set(groups[: groups.index(each.group)])
            assert set(groups) - {each.group} <= between, "a group was left out"
