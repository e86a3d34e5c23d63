"""Kafka's settings of brokers that clients can change at run time and that have no effect here.

They are accepted so that a client can send to this broker what it sends to Kafka. The broker checks, stores and
describes them as Kafka does. Types, defaults and limits are those of Kafka 4.3 (`DynamicBrokerConfig`, `KafkaConfig`).

Settings on which a client would rely are missing here, and so refused: those of TLS and of SASL logins, listeners,
`config.providers`, and `cordoned.log.dirs`.
"""

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from conveyor.settings.setting import setting

_MOST_32, _MOST_64 = (1 << 31) - 1, (1 << 63) - 1

_THREADS = "Without effect here, as one event loop serves all requests."
_CLEANER = "Without effect here, as broker.compaction_max_keys limits a compaction."
_REPLICATION = "Without effect here, as leader.replication.throttled.rate limits replicas that catch up."
_COORDINATORS = "Without effect here, as groups change without such a pause or buffer."
_CONNECTIONS = "Without effect here, as max.connections and the quotas of addresses limit connections."
_REMOTE = "Without effect here, as there is no remote storage."
_LOGIN = "Without effect here, as the broker does not log in anywhere."

UNUSED_SETTINGS: "Mapping[str, Field[Any]]" = {
    "background.threads": setting(10, _THREADS, minimum=1),
    "follower.fetch.last.tiered.offset.enable": setting(False, _REMOTE),
    "follower.replication.throttled.rate": setting(_MOST_64, _REPLICATION, minimum=0),
    "group.consumer.assignment.interval.ms": setting(1000, _COORDINATORS, minimum=0),
    "group.coordinator.cached.buffer.max.bytes": setting(1_048_588, _COORDINATORS, minimum=524_288),
    "group.share.assignment.interval.ms": setting(1000, _COORDINATORS, minimum=0),
    "group.streams.assignment.interval.ms": setting(1000, _COORDINATORS, minimum=0),
    "log.cleaner.dedupe.buffer.size": setting(134_217_728, _CLEANER),
    "log.cleaner.io.buffer.load.factor": setting(0.9, _CLEANER),
    "log.cleaner.io.buffer.size": setting(524_288, _CLEANER, minimum=0),
    "log.cleaner.io.max.bytes.per.second": setting(1.7976931348623157e308, _CLEANER),
    "log.cleaner.threads": setting(1, _CLEANER, minimum=0),
    "max.connection.creation.rate": setting(_MOST_32, _CONNECTIONS, minimum=0),
    "max.connections.per.ip": setting(_MOST_32, _CONNECTIONS, minimum=0),
    "max.connections.per.ip.overrides": setting("", _CONNECTIONS),
    "metric.reporters": setting("", "Without effect here, as `/metrics` reports all metrics.", is_list=True),
    "num.io.threads": setting(8, _THREADS, minimum=1),
    "num.network.threads": setting(3, _THREADS, minimum=1),
    "num.recovery.threads.per.data.dir": setting(2, _THREADS, minimum=1),
    "num.replica.fetchers": setting(1, _THREADS, minimum=1),
    "remote.fetch.max.wait.ms": setting(500, _REMOTE, minimum=1),
    "remote.list.offsets.request.timeout.ms": setting(30_000, _REMOTE, minimum=1),
    "remote.log.index.file.cache.total.size.bytes": setting(1 << 30, _REMOTE, minimum=1),
    "remote.log.manager.copier.thread.pool.size": setting(10, _REMOTE, minimum=1),
    "remote.log.manager.copy.max.bytes.per.second": setting(_MOST_64, _REMOTE, minimum=1),
    "remote.log.manager.expiration.thread.pool.size": setting(10, _REMOTE, minimum=1),
    "remote.log.manager.fetch.max.bytes.per.second": setting(_MOST_64, _REMOTE, minimum=1),
    "remote.log.manager.follower.thread.pool.size": setting(2, _REMOTE, minimum=1),
    "remote.log.reader.threads": setting(10, _REMOTE, minimum=1),
    "replica.alter.log.dirs.io.max.bytes.per.second": setting(
        _MOST_64, "Without effect here, as a broker has one log directory.", minimum=0
    ),
    "sasl.kerberos.kinit.cmd": setting("/usr/bin/kinit", _LOGIN),
    "sasl.kerberos.min.time.before.relogin": setting(60_000, _LOGIN),
    "sasl.kerberos.principal.to.local.rules": setting("DEFAULT", _LOGIN, is_list=True),
    "sasl.kerberos.service.name": setting("", _LOGIN),
    "sasl.kerberos.ticket.renew.jitter": setting(0.05, _LOGIN),
    "sasl.kerberos.ticket.renew.window.factor": setting(0.8, _LOGIN),
    "sasl.login.refresh.buffer.seconds": setting(300, _LOGIN),
    "sasl.login.refresh.min.period.seconds": setting(60, _LOGIN),
    "sasl.login.refresh.window.factor": setting(0.8, _LOGIN),
    "sasl.login.refresh.window.jitter": setting(0.05, _LOGIN),
    "share.coordinator.cached.buffer.max.bytes": setting(1_048_588, _COORDINATORS, minimum=524_288),
    "transaction.partition.verification.enable": setting(
        True, "Without effect here, as the broker always verifies that a partition takes part in a transaction."
    ),
}
