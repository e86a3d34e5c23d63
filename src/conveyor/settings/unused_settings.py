"""Kafka's settings that have no effect here: of topics, and of brokers.

They are accepted so that a client can send to this broker what it sends to Kafka. The broker checks, stores and
describes them as Kafka does; their sentences say why they have no effect. They are no part of the settings tree:
clients set them at run time, for a topic or for brokers. Types, defaults and limits are those of Kafka 4.3
(`TopicConfig`, `DynamicBrokerConfig`, `KafkaConfig`).

Settings of brokers on which a client would rely are missing here, and so refused: those of TLS and of SASL logins,
listeners, `config.providers`, and `cordoned.log.dirs`.
"""

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from conveyor.settings.setting import setting


def _unused(default: Any, reason: str, **limits: Any) -> "Field[Any]":
    """Declare a setting, whose values are checked, and the reason why it has no effect. limits: see `setting`."""
    declared: Field[Any] = setting(default, f"Without effect here, as {reason}.", **limits)
    return declared


_MOST_32, _MOST_64 = (1 << 31) - 1, (1 << 63) - 1

_FLUSHES = "flush.policy decides when records are flushed"
_REPLICAS = "replication has no quota"
_THREADS = "one event loop serves all requests"
_CLEANER = "broker.compaction_max_keys limits a compaction"
_REPLICATION = "leader.replication.throttled.rate limits replicas that catch up"
_COORDINATORS = "groups change without such a pause or buffer"
_CONNECTIONS = "max.connections and the quotas of addresses limit connections"
_REMOTE = "there is no remote storage"
_LOGIN = "the broker does not log in anywhere"

_THROTTLED = {
    "unit": "* or partition:broker,...",
    "pattern": r"\s*(\*|([0-9]+:[0-9]+)?(\s*,\s*[0-9]+:[0-9]+)*)\s*",
    "is_list": True,
}

UNUSED_TOPIC_SETTINGS: "Mapping[str, Field[Any]]" = {
    "flush.messages": _unused(_MOST_64, _FLUSHES, unit="records", minimum=1),
    "flush.ms": _unused(_MOST_64, _FLUSHES, unit="ms", minimum=0),
    "file.delete.delay.ms": _unused(
        60_000, "files are deleted at once; a read that has begun can finish", unit="ms", minimum=0
    ),
    "segment.index.bytes": _unused(
        10 << 20,
        "an index grows with its segment, up to segment.bytes",
        unit="bytes",
        minimum=4,
        maximum=_MOST_32,
    ),
    "preallocate": _unused(False, "a segment's file grows as it is written"),
    "leader.replication.throttled.replicas": _unused("", _REPLICAS, **_THROTTLED),
    "follower.replication.throttled.replicas": _unused("", _REPLICAS, **_THROTTLED),
    "remote.storage.enable": _unused(False, _REMOTE, choices=("false",)),
    "remote.log.copy.disable": _unused(False, _REMOTE, choices=("false",)),
    "remote.log.delete.on.disable": _unused(False, _REMOTE, choices=("false",)),
    "local.retention.ms": _unused(-2, "the whole log is local; -2 means retention.ms", unit="ms", choices=("-2",)),
    "local.retention.bytes": _unused(
        -2, "the whole log is local; -2 means retention.bytes", unit="bytes", choices=("-2",)
    ),
    "message.downconversion.enable": _unused(True, "records are stored and sent in one format only"),
}
"""By a topic's name. A broker has a default for each of them, with the name that `setting_names` gives it."""

UNUSED_BROKER_SETTINGS: "Mapping[str, Field[Any]]" = {
    "background.threads": _unused(10, _THREADS, minimum=1),
    "follower.fetch.last.tiered.offset.enable": _unused(False, _REMOTE),
    "follower.replication.throttled.rate": _unused(_MOST_64, _REPLICATION, minimum=0),
    "group.consumer.assignment.interval.ms": _unused(1000, _COORDINATORS, minimum=0),
    "group.coordinator.cached.buffer.max.bytes": _unused(1_048_588, _COORDINATORS, minimum=524_288),
    "group.share.assignment.interval.ms": _unused(1000, _COORDINATORS, minimum=0),
    "group.streams.assignment.interval.ms": _unused(1000, _COORDINATORS, minimum=0),
    "log.cleaner.dedupe.buffer.size": _unused(134_217_728, _CLEANER),
    "log.cleaner.io.buffer.load.factor": _unused(0.9, _CLEANER),
    "log.cleaner.io.buffer.size": _unused(524_288, _CLEANER, minimum=0),
    "log.cleaner.io.max.bytes.per.second": _unused(1.7976931348623157e308, _CLEANER),
    "log.cleaner.threads": _unused(1, _CLEANER, minimum=0),
    "max.connection.creation.rate": _unused(_MOST_32, _CONNECTIONS, minimum=0),
    "max.connections.per.ip": _unused(_MOST_32, _CONNECTIONS, minimum=0),
    "max.connections.per.ip.overrides": _unused("", _CONNECTIONS),
    "metric.reporters": _unused("", "`/metrics` reports all metrics", is_list=True),
    "num.io.threads": _unused(8, _THREADS, minimum=1),
    "num.network.threads": _unused(3, _THREADS, minimum=1),
    "num.recovery.threads.per.data.dir": _unused(2, _THREADS, minimum=1),
    "num.replica.fetchers": _unused(1, _THREADS, minimum=1),
    "remote.fetch.max.wait.ms": _unused(500, _REMOTE, minimum=1),
    "remote.list.offsets.request.timeout.ms": _unused(30_000, _REMOTE, minimum=1),
    "remote.log.index.file.cache.total.size.bytes": _unused(1 << 30, _REMOTE, minimum=1),
    "remote.log.manager.copier.thread.pool.size": _unused(10, _REMOTE, minimum=1),
    "remote.log.manager.copy.max.bytes.per.second": _unused(_MOST_64, _REMOTE, minimum=1),
    "remote.log.manager.expiration.thread.pool.size": _unused(10, _REMOTE, minimum=1),
    "remote.log.manager.fetch.max.bytes.per.second": _unused(_MOST_64, _REMOTE, minimum=1),
    "remote.log.manager.follower.thread.pool.size": _unused(2, _REMOTE, minimum=1),
    "remote.log.reader.threads": _unused(10, _REMOTE, minimum=1),
    "replica.alter.log.dirs.io.max.bytes.per.second": _unused(_MOST_64, "a broker has one log directory", minimum=0),
    "sasl.kerberos.kinit.cmd": _unused("/usr/bin/kinit", _LOGIN),
    "sasl.kerberos.min.time.before.relogin": _unused(60_000, _LOGIN),
    "sasl.kerberos.principal.to.local.rules": _unused("DEFAULT", _LOGIN, is_list=True),
    "sasl.kerberos.service.name": _unused("", _LOGIN),
    "sasl.kerberos.ticket.renew.jitter": _unused(0.05, _LOGIN),
    "sasl.kerberos.ticket.renew.window.factor": _unused(0.8, _LOGIN),
    "sasl.login.refresh.buffer.seconds": _unused(300, _LOGIN),
    "sasl.login.refresh.min.period.seconds": _unused(60, _LOGIN),
    "sasl.login.refresh.window.factor": _unused(0.8, _LOGIN),
    "sasl.login.refresh.window.jitter": _unused(0.05, _LOGIN),
    "share.coordinator.cached.buffer.max.bytes": _unused(1_048_588, _COORDINATORS, minimum=524_288),
    "transaction.partition.verification.enable": _unused(
        True, "the broker always verifies that a partition takes part in a transaction"
    ),
}
