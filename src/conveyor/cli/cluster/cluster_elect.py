"""`conveyor cluster elect`: elect the preferred leaders, or any leader for partitions without one."""

from typing import Annotated

import typer

from conveyor.cli.cluster.cluster_client import Place, cluster_client
from conveyor.cli.cluster.plan_run import raise_refusals
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError, counted
from conveyor.cli.terminal.table import Cell, print_table
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.image import NO_LEADER, ClusterImage


def elect(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.")] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Give partitions without a leader any live replica; committed records are lost."
        ),
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect the preferred leader, the first replica, of each partition that another broker leads.

    Shows the partitions and asks for confirmation. With --unclean, elects a leader for each partition that has none,
    even if that replica lacks records that were acknowledged: use it only if the replicas of the isr and elr columns
    will not return.

    \b
    Examples:
      conveyor cluster elect
      conveyor cluster elect orders --unclean
    """
    with cluster_client(bootstrap) as client:
        image, _ = client.image()
        if topic is not None and topic not in image.topics:
            raise ClientError(f"unknown topic '{topic}': see 'conveyor topic list'")
        found = _leaderless(image) if unclean else preferred_elections(image)
        places = [place for place in found if topic in (None, place[0])]
        if not places:
            every = "every partition has a leader" if unclean else "each partition has its preferred leader"
            return typer.echo(f"nothing to do: {every}, or no replica can lead")
        _show(image, places)
        risk = " Acknowledged records may be lost." if unclean else ""
        confirm(f"Elect {counted(len(places), 'leader')}?{risk}", yes)
        refused = client.elect(places, unclean=unclean)
        typer.echo(f"elected {counted(len(places) - len(refused), 'leader')}")
        raise_refusals(refused)


def preferred_elections(image: ClusterImage) -> list[Place]:
    """Return the partitions whose preferred replica is live and in sync, and does not lead."""
    live = {broker.node_id for broker in image.live_brokers}
    return [
        (topic.name, number)
        for topic in owners(image)
        for number, partition in enumerate(topic.partitions)
        if partition.leader != (preferred := partition.replicas[0]) and preferred in live and preferred in partition.isr
    ]


def _leaderless(image: ClusterImage) -> list[Place]:
    return [
        (topic.name, number)
        for topic in owners(image)
        for number, partition in enumerate(topic.partitions)
        if partition.leader == NO_LEADER
    ]


def _show(image: ClusterImage, places: list[Place]) -> None:
    rows: list[list[Cell]] = []
    for topic, number in places:
        partition = image.topics[topic].partitions[number]
        leader = None if partition.leader == NO_LEADER else partition.leader
        replicas, isr, elr = (",".join(map(str, nodes)) for nodes in (partition.replicas, partition.isr, partition.elr))
        rows.append([topic, number, leader, replicas, isr, elr])
    print_table(["topic", "partition", "leader", "replicas", "isr", "elr"], rows)
