"""Shows a plan of reassignments, asks for confirmation, runs it, and waits until it is complete."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import typer

from conveyor.cli.cluster.cluster_client import ClusterClient, Place, Refusals
from conveyor.cli.terminal.confirmation import confirm
from conveyor.cli.terminal.kafka_client import ClientError, counted
from conveyor.cli.terminal.progress import CountProgress, count_progress
from conveyor.cli.terminal.table import Cell, print_table
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.cluster.image import NO_LEADER, ClusterImage

Parallel = Annotated[
    int, typer.Option("--parallel", min=1, metavar="N", help="Partitions that are reassigned at the same time.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Start all reassignments at once, and do not wait until they are complete.")
]
DEFAULT_PARALLEL = 50
_SHOWN_ROWS = 30
_POLL_S = 0.2
_SETTLING_S = 2.0
_CANCELLED = "another command has changed or cancelled it"
_LEADERLESS = (
    "no leader to copy from: start a broker of its isr, or begin again without its records by"
    " 'conveyor cluster elect --unclean'; the reassignment then completes"
)


def show_plan(image: ClusterImage, plan: Sequence[Reassignment]) -> None:
    """Print the first rows of a plan."""
    rows: list[list[Cell]] = []
    for item in plan[:_SHOWN_ROWS]:
        partition = image.topics[item.topic].partitions[item.partition]
        target = partition.origin if item.target is None else item.target
        rows.append([item.topic, item.partition, _listed(partition.replicas), _listed(target)])
    print_table(["topic", "partition", "replicas", "planned"], rows)
    if len(plan) > _SHOWN_ROWS:
        typer.echo(f"... and {counted(len(plan) - _SHOWN_ROWS, 'more partition')}")


def run_plan(
    client: ClusterClient, image: ClusterImage, plan: Sequence[Reassignment], *, yes: bool, parallel: int, wait: bool
) -> None:
    """Show and run a plan. Raises ClientError if it is not confirmed, or a reassignment is refused or cancelled."""
    show_plan(image, plan)
    confirm(f"Reassign {counted(len(plan), 'partition')}?", yes)
    if not wait:
        refused = client.reassign(plan)
        typer.echo(f"started {counted(len(plan) - len(refused), 'reassignment')}: 'conveyor cluster status' shows them")
        return raise_refusals(refused)
    leaderless = {
        (item.topic, item.partition)
        for item in plan
        if image.topics[item.topic].partitions[item.partition].leader == NO_LEADER
    }
    with count_progress("reassigning") as progress:
        refused = _run(client, plan, leaderless, parallel, progress)
    unfinished = _unfinished(client, plan, leaderless) - refused.keys()
    typer.echo(f"reassigned {counted(len(plan) - len(refused) - len(unfinished), 'partition')}")
    reasons = {place: _LEADERLESS if place in leaderless else _CANCELLED for place in unfinished}
    raise_refusals({**refused, **reasons})


def raise_refusals(refused: Refusals) -> None:
    """Print the refusals, if there are any, and raise ClientError."""
    if refused:
        print_table(["topic", "partition", "reason"], [[*place, reason] for place, reason in sorted(refused.items())])
        raise ClientError(f"{counted(len(refused), 'partition')} not changed")


def _run(
    client: ClusterClient, plan: Sequence[Reassignment], leaderless: set[Place], parallel: int, progress: CountProgress
) -> dict[Place, str]:
    """Keep some reassignments in progress until all are complete. Returns the refused ones.

    leaderless: partitions without a leader, whose reassignments are only started.
    """
    waiting, moving, refused = deque(plan), set[Place](), dict[Place, str]()
    try:
        while waiting or moving:
            started = [waiting.popleft() for _ in range(min(len(waiting), parallel - len(moving)))]
            if started:
                refused |= client.reassign(started)
                moving |= {(item.topic, item.partition) for item in started} - refused.keys() - leaderless
            moving &= client.reassignments().keys()
            progress.update(len(plan) - len(waiting) - len(moving), len(plan))
            if moving:
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        typer.echo(
            f"{counted(len(moving), 'reassignment')} will go on: 'conveyor cluster reassign --cancel' cancels all",
            err=True,
        )
        raise
    return refused


def _unfinished(client: ClusterClient, plan: Sequence[Reassignment], leaderless: set[Place]) -> set[Place]:
    """Return the partitions without the planned replicas. A broker may need a moment to learn of the last changes."""
    ends = time.monotonic() + _SETTLING_S
    while (unfinished := _without_target(client, plan)) - leaderless and time.monotonic() < ends:
        time.sleep(_POLL_S)
    return unfinished


def _without_target(client: ClusterClient, plan: Sequence[Reassignment]) -> set[Place]:
    image, _ = client.image()
    return {
        (item.topic, item.partition)
        for item in plan
        if item.topic in image.topics and image.topics[item.topic].partitions[item.partition].replicas != item.target
    }


def _listed(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
