"""`conveyor cluster status` and `brokers`: the brokers, and the partitions that need attention."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer

from conveyor.cli.cluster.cluster_client import cluster_client
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json, counted
from conveyor.cli.terminal.table import print_table
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from conveyor.kernel.ids import NodeId

_LOST = (
    "no broker has proved that it has all their records. Restore lost directories if you can; then 'conveyor cluster"
    " elect --unclean' begins again with what the replicas have"
)


def status(as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the brokers, and the partitions that need attention.

    Lists the partitions without a leader, the under-replicated ones, whose leader has fewer in-sync replicas than
    replicas, and those being reassigned. A partition without a leader waits for a broker of the isr or elr column: the
    elr lists replicas that have left the isr with all committed records.

    \b
    Example:
      conveyor cluster status
    """
    with cluster_client(bootstrap) as client:
        image, controller = client.image()
    brokers, attention = _brokers(image, controller), list(_attention(image))
    counts = {
        "topics": sum(1 for _ in owners(image)),
        "partitions": sum(len(topic.partitions) for topic in owners(image)),
        "leaderless": sum(row["leader"] is None for row in attention),
        "under_replicated": sum(row["is_under_replicated"] for row in attention),
        "reassigned": sum(bool(row["adding"] or row["removing"]) for row in attention),
    }
    if as_json:
        document = {"cluster_id": image.cluster_id, "controller": controller, "brokers": brokers} | counts
        return typer.echo(json.dumps(document | {"attention": attention}))
    typer.echo(f"cluster {image.cluster_id}, controller {controller}")
    typer.echo(
        f"{counted(counts['topics'], 'topic')}, {counted(counts['partitions'], 'partition')}:"
        f" {counts['leaderless']} without a leader, {counts['under_replicated']} under-replicated,"
        f" {counts['reassigned']} being reassigned"
    )
    typer.echo()
    _print_brokers(brokers)
    if attention:
        typer.echo()
        columns = ["topic", "partition", "leader", "replicas", "isr", "elr", "adding", "removing"]
        print_table(columns, [[_shown(row[column]) for column in columns] for row in attention])
    if lost := sum(not (row["isr"] or row["elr"]) for row in attention):
        typer.echo(f"\n{counted(lost, 'partition')} without any in-sync replica: {_LOST}")


def brokers(as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the brokers.

    Shows for each broker its address, its rack, the number of partitions that it leads and the number of replicas that
    it holds. A fenced broker is stopped, or has lost its connection to the metadata store.

    \b
    Example:
      conveyor cluster brokers
    """
    with cluster_client(bootstrap) as client:
        rows = _brokers(*client.image())
    if as_json:
        return typer.echo(json.dumps(rows))
    _print_brokers(rows)


def _brokers(image: ClusterImage, controller: NodeId) -> list[dict[str, Any]]:
    leads: Counter[NodeId] = Counter()
    holds: Counter[NodeId] = Counter()
    for topic in owners(image):
        leads.update(partition.leader for partition in topic.partitions)
        holds.update(node for partition in topic.partitions for node in partition.replicas)
    return [
        {
            "broker": node,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "state": "fenced" if broker.is_fenced else "live",
            "controller": node == controller,
            "leads": leads[node],
            "replicas": holds[node],
        }
        for node, broker in sorted(image.brokers.items())
    ]


def _print_brokers(rows: list[dict[str, Any]]) -> None:
    columns = ["broker", "address", "rack", "state", "leads", "replicas"]
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _attention(image: ClusterImage) -> Iterator[dict[str, Any]]:
    for topic in owners(image):
        for number, partition in enumerate(topic.partitions):
            if partition.leader == NO_LEADER or partition.target or _is_under_replicated(partition):
                yield {
                    "topic": topic.name,
                    "partition": number,
                    "leader": None if partition.leader == NO_LEADER else partition.leader,
                    "replicas": partition.replicas,
                    "isr": partition.isr,
                    "elr": partition.elr,
                    "adding": partition.adding,
                    "removing": partition.removing,
                    "is_under_replicated": _is_under_replicated(partition),
                }


def _is_under_replicated(partition: PartitionImage) -> bool:
    """Return whether a leader waits for replicas. Without a leader, no replica can catch up."""
    return partition.leader != NO_LEADER and len(partition.isr) < partition.replication_factor


def _shown(cell: Any) -> Any:
    return ",".join(map(str, cell)) if isinstance(cell, tuple) else cell
