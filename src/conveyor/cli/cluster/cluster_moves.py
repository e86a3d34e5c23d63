"""`conveyor cluster reassign`, `drain` and `rebalance`: other replicas for partitions."""

from collections.abc import Sequence
from typing import Annotated

import typer

from conveyor.cli.cluster.cluster_client import ClusterClient, cluster_client, require_broker
from conveyor.cli.cluster.cluster_elect import preferred_elections
from conveyor.cli.cluster.plan_run import DEFAULT_PARALLEL, NoWait, Parallel, raise_refusals, run_plan, show_plan
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    OnlyPartitions,
    counted,
    unknown_partition_error,
)
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.controller.reassignments import Reassignment, drain_plan
from conveyor.cluster.controller.replica_balance import balance_plan
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.cluster.placement import Placement
from conveyor.kernel.ids import NodeId, is_gateway


def reassign(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The topic's name.")] = None,
    partition: OnlyPartitions = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="BROKER,...", help="The brokers, the preferred leader first.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, metavar="N", help="The number of replicas; the brokers are chosen."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the reassignments in progress: of the topic, or all of them.")
    ] = False,
    yes: Yes = False,
    parallel: Parallel = DEFAULT_PARALLEL,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move the partitions of a topic to other brokers, or change their number of replicas.

    Shows the plan, asks for confirmation, and waits until the new replicas have all records. If --to names brokers for
    several partitions, their leaders take turns.

    \b
    Examples:
      conveyor cluster reassign orders --to 1,2,3
      conveyor cluster reassign orders --partition 0 --to 3,1
      conveyor cluster reassign orders --replicas 3
      conveyor cluster reassign --cancel
    """
    if (to is not None) + (replicas is not None) + cancel != 1:
        raise ClientError("the target is missing or ambiguous: give one of --to, --replicas and --cancel")
    if topic is None and not cancel:
        raise ClientError("the topic is missing: 'conveyor cluster reassign TOPIC'")
    brokers = None if to is None else _brokers(to)
    with cluster_client(bootstrap) as client:
        image, _ = client.image()
        if cancel:
            return _cancel(client, image, topic, partition, yes=yes)
        chosen = _topic(image, topic or "")
        numbers = _numbers(chosen, partition)
        if brokers is not None:
            plan = _to_brokers(image, chosen, numbers, brokers)
        else:
            plan = _to_factor(image, chosen, numbers, replicas or 0)
        if not plan:
            return typer.echo("nothing to do: the partitions have these replicas already")
        run_plan(client, image, plan, yes=yes, parallel=parallel, wait=not no_wait)


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.")],
    yes: Yes = False,
    parallel: Parallel = DEFAULT_PARALLEL,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move all replicas away from a broker, before it is removed or after it was lost.

    Shows the plan, asks for confirmation, and waits until the other brokers have all records. Topics that are created
    meanwhile may still be placed on the broker.

    \b
    Example:
      conveyor cluster drain 3
    """
    with cluster_client(bootstrap) as client:
        image, _ = client.image()
        plan = drain_plan(image, require_broker(image, broker))
        if not plan:
            return typer.echo(f"broker {broker} holds no replicas")
        run_plan(client, image, plan, yes=yes, parallel=parallel, wait=not no_wait)


def rebalance(
    yes: Yes = False,
    parallel: Parallel = DEFAULT_PARALLEL,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Spread the replicas and the leaders evenly over the live brokers, such as after a broker was added.

    Shows the plan, asks for confirmation, waits until the new replicas have all records, and elects the preferred
    leaders. Replicas on fenced brokers stay there: see 'conveyor cluster drain'.

    \b
    Example:
      conveyor cluster rebalance
    """
    with cluster_client(bootstrap) as client:
        image, _ = client.image()
        plan = balance_plan(image)
        if not plan:
            return typer.echo("nothing to do: the replicas are balanced")
        run_plan(client, image, plan, yes=yes, parallel=parallel, wait=not no_wait)
        if not no_wait:
            balanced, _ = client.image()
            raise_refusals(client.elect(preferred_elections(balanced), unclean=False))


def _cancel(
    client: ClusterClient, image: ClusterImage, topic: str | None, partitions: Sequence[int] | None, *, yes: bool
) -> None:
    plan = [
        Reassignment(topic=owner.name, partition=number, target=None)
        for owner in (owners(image) if topic is None else [_topic(image, topic)])
        for number in _numbers(owner, partitions)
        if owner.partitions[number].target
    ]
    if not plan:
        return typer.echo("nothing to do: no reassignment is in progress")
    show_plan(image, plan)
    confirm(f"Cancel {counted(len(plan), 'reassignment')}?", yes)
    refused = client.reassign(plan)
    typer.echo(f"cancelled {counted(len(plan) - len(refused), 'reassignment')}")
    raise_refusals(refused)


def _to_brokers(
    image: ClusterImage, topic: TopicImage, numbers: Sequence[int], brokers: Sequence[NodeId]
) -> list[Reassignment]:
    for node in brokers:
        if is_gateway(node):
            raise ClientError(f"--to: {node} is the id of a gateway, which holds no replicas")
        if node not in image.brokers:
            raise ClientError(f"--to: there is no broker {node}: see 'conveyor cluster brokers'")
        if image.brokers[node].is_fenced:
            raise ClientError(f"--to: broker {node} is fenced: start it first")
    turns = [place % len(brokers) for place in range(len(numbers))]
    targets = [(*brokers[turn:], *brokers[:turn]) for turn in turns]
    return _changes(topic, zip(numbers, targets, strict=True))


def _to_factor(image: ClusterImage, topic: TopicImage, numbers: Sequence[int], factor: int) -> list[Reassignment]:
    placement = Placement(image)
    partitions = [topic.partitions[number] for number in numbers]
    targets = [placement.resize(partition.target or partition.replicas, factor) for partition in partitions]
    return _changes(topic, zip(numbers, targets, strict=True))


def _changes(topic: TopicImage, targets: "zip[tuple[int, tuple[NodeId, ...]]]") -> list[Reassignment]:
    return [
        Reassignment(topic=topic.name, partition=number, target=target)
        for number, target in targets
        if target != (topic.partitions[number].target or topic.partitions[number].replicas)
    ]


def _brokers(text: str) -> tuple[NodeId, ...]:
    """Parse `1,2,3`. Raises ClientError."""
    ids = text.split(",")
    if not all(node.isascii() and node.isdecimal() for node in ids) or len(set(ids)) < len(ids):
        raise ClientError(f"--to {text}: expected the ids of different brokers, such as 1,2,3")
    return tuple(NodeId(int(node)) for node in ids)


def _topic(image: ClusterImage, name: str) -> TopicImage:
    """Return a topic. Raises ClientError."""
    topic = next((topic for topic in owners(image) if topic.name == name), None)
    if topic is None:
        raise ClientError(f"unknown topic '{name}': see 'conveyor topic list'")
    return topic


def _numbers(topic: TopicImage, wanted: Sequence[int] | None) -> list[int]:
    """Return the wanted partitions, or all of them. Raises ClientError."""
    count = len(topic.partitions)
    for number in wanted or ():
        if not 0 <= number < count:
            raise unknown_partition_error(topic.name, number, count)
    return sorted(set(wanted)) if wanted else list(range(count))
