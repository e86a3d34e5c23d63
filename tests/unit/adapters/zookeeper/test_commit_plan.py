"""Which ZooKeeper transaction a commit becomes."""

import pytest

from conveyor.adapters.zookeeper.commit_plan import (
    CheckStep,
    CreateStep,
    DeleteStep,
    FoundNode,
    SetStep,
    Step,
    plan_commit,
)
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import ABSENT, CheckNode, DeleteNode, PutNode, StoreOperation

FOUND = {
    "/a": FoundNode(3, is_ephemeral=False),
    "/a/b": FoundNode(1, is_ephemeral=False),
    "/a/b/c": FoundNode(1, is_ephemeral=False),
    "/a-b": FoundNode(1, is_ephemeral=False),
    "/live": FoundNode(2, is_ephemeral=True),
}


@pytest.mark.parametrize(
    ("operation", "steps"),
    [
        (PutNode("/a", b"x"), [SetStep("/a", b"x", -1)]),
        (PutNode("/a", b"x", 3), [SetStep("/a", b"x", 2)]),
        (PutNode("/n/m", b"x", ephemeral=True), [CreateStep("/n"), CreateStep("/n/m", b"x", is_ephemeral=True)]),
        (PutNode("/a/n", b"x", ABSENT), [CreateStep("/a/n", b"x")]),
        (DeleteNode("/a", 3), [DeleteStep("/a/b/c"), DeleteStep("/a/b"), DeleteStep("/a", 2)]),
        (DeleteNode("/n"), []),
        (DeleteNode("/n", ABSENT), [CreateStep("/n"), DeleteStep("/n")]),
        (CheckNode("/a", 3), [CheckStep("/a", 2)]),
        (CheckNode("/a", -1), []),
        (
            CheckNode("/n/m", ABSENT),
            [CreateStep("/n"), CreateStep("/n/m"), DeleteStep("/n/m"), DeleteStep("/n")],
        ),
        (CheckNode("/live/n", ABSENT), [CheckStep("/live", 1)]),
    ],
)
def test_operation_becomes_steps(operation: StoreOperation, steps: list[Step]) -> None:
    plan = plan_commit([operation], FOUND)
    assert plan is not None
    assert plan.steps == steps


@pytest.mark.parametrize("version", [ABSENT, 1, 4])
def test_wrong_version_is_refused(version: int) -> None:
    for operation in (PutNode("/a", b"", version), DeleteNode("/a", version), CheckNode("/a", version)):
        assert plan_commit([PutNode("/n", b""), operation], FOUND) is None


def test_operations_follow_those_before_them() -> None:
    plan = plan_commit(
        [
            DeleteNode("/a", 3),
            CheckNode("/a/b", ABSENT),
            PutNode("/a/b", b"new", ABSENT),
            PutNode("/a/b", b"newer", 1),
            CheckNode("/n", ABSENT),
            PutNode("/n/m", b""),
        ],
        FOUND,
    )
    assert plan is not None
    assert plan.steps[3:] == [
        CreateStep("/a"),
        CreateStep("/a/b", b"new"),
        SetStep("/a/b", b"newer", 0),
        CreateStep("/n"),
        DeleteStep("/n"),
        CreateStep("/n"),
        CreateStep("/n/m", b""),
    ]
    assert plan.writes == [None, None, 4, 5, None, 9]


def test_node_below_an_ephemeral_one_is_a_failure() -> None:
    with pytest.raises(StorageFailure, match="/live is ephemeral"):
        plan_commit([PutNode("/live/n", b"")], FOUND)
