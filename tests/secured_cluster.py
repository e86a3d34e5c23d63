"""A cluster of three brokers with three ways to log in, where clients may do only what an ACL allows."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from conveyor.kernel.ids import NodeId
from conveyor.testing import Cluster
from pyspark_conveyor.brokers.token_file import TOKEN_URL
from tests.certificates import Certificates
from tests.clients.python.security import VARIABLE, librdkafka_of
from tests.identity_provider import AUDIENCE, ISSUER, key_set, signing_key, token

_PASSWORD = "of the worker"
_OBSERVER = "observer"
_TOKEN_S = 7200
_LOGIN, _CERTIFICATE = "SASL_SSL", "SSL"
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
_THE_CLUSTER = "kafka-cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to log in. listener: which has it; user: who logs in by it."""

    name: str
    listener: str
    user: str


SCRAM = Way(name="scram", listener=_LOGIN, user="worker")
MUTUAL_TLS = Way(name="mutual-tls", listener=_CERTIFICATE, user="CN=worker")
TOKENS = Way(name="tokens", listener=_LOGIN, user="bearer")
WAYS = (SCRAM, MUTUAL_TLS, TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where clients connect."""

    bootstrap_servers: str


class SecuredCluster:
    """Start with `with SecuredCluster(certificates, folder) as cluster:`. folder: of the files of tokens.

    Beside the users of the ways there is an observer, who has a certificate and may do everything. Clusters with the
    same certificates let the same clients in.
    """

    def __init__(self, certificates: Certificates, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self._certificates = certificates
        self.observer = certificates.connection(certificates.of_user(_OBSERVER))
        """How the observer connects, as `tests.clients.python.security` has it."""
        self._token, keys = folder / "token", folder / "keys.json"
        self._token.write_text(token(int(time.time() * 1000), sub=TOKENS.user, exp=int(time.time()) + _TOKEN_S))
        keys.write_bytes(key_set(signing_key("RS256")))
        self._acls: set[AclBinding] = set()
        self._killed = 0
        own = {
            **certificates.settings(f"{_LOGIN}://127.0.0.1:0,{_CERTIFICATE}://127.0.0.1:0", "requested"),
            "network.sasl_mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "sasl.jwks_file": str(keys),
            "sasl.oauth_audience": AUDIENCE,
            "sasl.oauth_issuer": ISSUER,
            "access.enabled": True,
            "access.super_users": f"User:CN={_OBSERVER}",
            "broker.default_replication_factor": 3,
            "topics.min_insync_replicas": 2,
        }
        self._cluster = Cluster(settings={**own, **(settings or {})})

    def __enter__(self) -> Self:
        self._cluster.start()
        self._admin = AdminClient(librdkafka_of(self.observer, self.bootstrap_servers) | {"log_level": 0})
        self._add_user()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    def bootstrap(self, way: Way) -> str:
        """Return the addresses for a way, as clients take them."""
        return ",".join(broker.kafka_addresses[way.listener] for broker in self._cluster.brokers.values())

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for the observer."""
        return self.bootstrap(MUTUAL_TLS)

    def connection(self, way: Way) -> dict[str, str]:
        """Return how clients connect by a way, as `tests.clients.python.security` has it."""
        if way is MUTUAL_TLS:
            return self._certificates.connection(self._certificates.client)
        connection = {"protocol": _LOGIN, "ca": self._certificates.authority}
        if way is TOKENS:
            return connection | {"token": str(self._token)}
        return connection | {"mechanism": "SCRAM-SHA-512", "user": way.user, "password": _PASSWORD}

    def client_config(self, way: Way, folder: Path) -> Path:
        """Write the file of `--client-config` by which commands connect by a way. Returns its path."""
        connection = self.connection(way)
        settings = librdkafka_of(connection, "")
        del settings["bootstrap.servers"]
        if settings.pop("oauth_cb", None) is not None:
            settings[TOKEN_URL] = Path(connection["token"]).as_uri()
        file = folder / f"{way.name}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def place(self, way: Way) -> "Place":
        """Return where clients connect by a way."""
        return Place(bootstrap_servers=self.bootstrap(way))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=20).topics)

    def delete_topics(self, *names: str) -> None:
        for deleted in self._admin.delete_topics(list(names)).values():
            deleted.result(20)

    def allow(self, way: Way, name: str, operations: Mapping[str, str], *, prefixed: bool = False) -> None:
        """Allow the user of a way operations, such as `{"topic": "create,read"}`, on what has this name, or a
        name that begins so. Returns once all brokers know.
        """
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        acls = [
            AclBinding(
                _RESOURCES[kind],
                _THE_CLUSTER if kind == "cluster" else name,
                ResourcePatternType.LITERAL if kind == "cluster" else pattern,
                f"User:{way.user}",
                "*",
                AclOperation[operation.upper()],
                AclPermissionType.ALLOW,
            )
            for kind, listed in operations.items()
            for operation in listed.split(",")
        ]
        for created in self._admin.create_acls(acls).values() if acls else ():
            created.result(20)
        self._acls.update(acls)
        self._await(lambda image: len(image.acls) >= len(self._acls), "ACLs are missing")

    def _add_user(self) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(SCRAM.user, info, _PASSWORD.encode())
        self._admin.alter_user_scram_credentials([change])[SCRAM.user].result(20)
        self._await(lambda image: any(user == SCRAM.user for user, _ in image.scram), "the user is missing")

    def _await(self, is_so: Any, what: str) -> None:
        for broker in self._cluster.brokers.values():
            if broker.is_running:
                broker.wait_until(is_so, what)

    def kill(self) -> None:
        """Kill a broker: the one that has led the most partitions."""
        leaders = [
            partition.leader
            for topic in next(iter(self._cluster.brokers.values())).image().topics.values()
            for partition in topic.partitions
        ]
        self._killed = max(self._cluster.brokers, key=lambda node_id: leaders.count(NodeId(node_id)))
        self._cluster.kill(self._killed)

    def start(self) -> None:
        """Start the killed broker again, and return once all replicas are in sync."""
        self._cluster.restart(self._killed)
        self._cluster.wait_until_in_sync()


@contextmanager
def connecting(connection: Mapping[str, str]) -> Iterator[None]:
    """Let the clients of a test connect so, inside this block."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, json.dumps(connection))
        yield
