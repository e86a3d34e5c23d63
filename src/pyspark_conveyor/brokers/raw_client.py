"""Sends single requests of the Kafka protocol, through kafka-python's connections.

For what clients do not offer: record batches as they are stored, and the end of a transaction that another process has
begun. Metadata, security and reconnects are kafka-python's. This is the only file that knows its inner classes.
"""

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark_conveyor.brokers.listener_probe import speaks_tls
from pyspark_conveyor.brokers.token_file import TOKEN_URL, TokenFile
from pyspark_conveyor.pipeline_errors import PipelineError

_TIMEOUT_MS = 30_000
_CONNECT_MS = 10_000
_MAX_RESPONSE_BYTES = 1 << 30
_RETRY_S = 0.1
GROUP, TRANSACTION = 0, 1

_NAMES = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_HOST_CHECKS = {"https": True, "none": False}


class ConnectionFailedError(PipelineError):
    """No connection, or it ended before the response came. The request may be repeated.

    needs_tls: what listens there speaks TLS, and the client does not.
    """

    def __init__(self, bootstrap_servers: str, needs_tls: bool = False) -> None:
        super().__init__(bootstrap_servers, needs_tls)
        self.bootstrap_servers = bootstrap_servers
        self.needs_tls = needs_tls

    def __str__(self) -> str:
        if self.needs_tls:
            return (
                f"{self.bootstrap_servers} is for clients that connect by TLS: set kafka.security.protocol to SSL or"
                " SASL_SSL, and kafka.ssl.ca.location to the authority of the broker's certificate"
            )
        return f"no broker answers at {self.bootstrap_servers}: start one with 'conveyor serve', or check the address"


class RawClient:
    """A connection to each broker that is asked. Use it from one thread.

    client_options: by librdkafka's names. Those about security can be translated; others are refused. Raises
    PipelineError for an address or an option that cannot be used.
    """

    def __init__(self, bootstrap_servers: str, client_options: Mapping[str, str]) -> None:
        from kafka.net.manager import KafkaConnectionManager
        from kafka.net.selector import NetworkSelector

        logging.getLogger("kafka").addHandler(logging.NullHandler())
        self._bootstrap_servers = bootstrap_servers
        self._is_encrypted = client_options.get("security.protocol", "").upper().endswith("SSL")
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._net = NetworkSelector()
        try:
            self._connections = KafkaConnectionManager(
                self._net,
                bootstrap_servers=bootstrap_servers.split(","),
                receive_message_max_bytes=_MAX_RESPONSE_BYTES,
                request_timeout_ms=_TIMEOUT_MS,
                **translated(client_options),
            )
        except ValueError as error:
            self._net.close()
            raise PipelineError(
                f"{bootstrap_servers!r} is no address of brokers: write HOST:PORT[,HOST:PORT]"
            ) from error

    def close(self) -> None:
        with warnings.catch_warnings():
            # kafka-python leaves a socket that is connecting to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            self._connections.close()
            self._net.close()

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition. Raises PipelineError if there is none for 30 seconds."""
        deadline = time.monotonic() + _TIMEOUT_MS / 1000
        while (topic, partition) not in self._leaders:
            try:
                self._learn_leaders(topic)
            except ConnectionFailedError:
                if time.monotonic() > deadline:
                    raise
            if (topic, partition) not in self._leaders:
                if time.monotonic() > deadline:
                    raise PipelineError(
                        f"partition {partition} of '{topic}' has no leader: see 'conveyor topic describe'"
                    )
                time.sleep(_RETRY_S)
        return self._leaders[topic, partition]

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return the node that coordinates a group, or with TRANSACTION a transactional id. Raises PipelineError if
        there is none for 30 seconds.
        """
        from kafka.protocol.metadata import FindCoordinatorRequest

        deadline = time.monotonic() + _TIMEOUT_MS / 1000
        while (kind, key) not in self._coordinators:
            try:
                response = self.ask(FindCoordinatorRequest(key=key, key_type=kind, max_version=3))
            except ConnectionFailedError:
                if time.monotonic() > deadline:
                    raise
                continue
            if response.error_code == 0:
                self._note_brokers(self.metadata([]))
                self._coordinators[kind, key] = response.node_id
            elif time.monotonic() > deadline:
                raise PipelineError(f"'{key}' has no coordinator: see 'conveyor cluster status'")
            else:
                time.sleep(_RETRY_S)
        return self._coordinators[kind, key]

    def forget_leaders(self) -> None:
        """Look leaders and coordinators up again when they are next needed."""
        self._leaders.clear()
        self._coordinators.clear()

    def ask(self, request: Any, node: int | None = None) -> Any:
        """Send a request of `kafka.protocol`, and return its response.

        node: None for any broker. Raises ConnectionFailedError, and PipelineError if the login is refused.
        """
        from kafka import errors

        try:
            return self._net.run(self._ask, request, node)
        except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
            raise PipelineError(f"{self._bootstrap_servers} refuses the login: {error}") from error
        except (errors.KafkaError, OSError) as error:
            raise ConnectionFailedError(self._bootstrap_servers, self._needs_tls) from error

    @cached_property
    def _needs_tls(self) -> bool:
        """Whether this client, without TLS, has dialled a listener with it: looked up once, after a failure."""
        return not self._is_encrypted and any(map(speaks_tls, self._bootstrap_servers.split(",")))

    async def _ask(self, request: Any, node: int | None) -> Any:
        if not self._connections.bootstrapped:
            await self._connections.bootstrap_async(_CONNECT_MS)
        if node is None:
            node = self._connections.least_loaded_node()
        connection = await self._connections.get_connection(node)
        return await connection.send_request(request)

    def metadata(self, topics: Sequence[str] | None) -> Any:
        """Return the response about some topics, or with None about all. Raises ConnectionFailedError."""
        return self.ask(_metadata_request(topics))

    def _learn_leaders(self, topic: str) -> None:
        response = self.metadata([topic])
        self._note_brokers(response)
        for found in response.topics:
            for partition in found.partitions:
                if partition.leader_id >= 0:
                    self._leaders[found.name, partition.partition_index] = partition.leader_id

    def _note_brokers(self, response: Any) -> None:
        """Let kafka-python know the addresses of today's brokers."""

        async def note() -> None:
            self._connections.cluster.update_metadata(response)

        self._net.run(note)


def _metadata_request(topics: Sequence[str] | None) -> Any:
    from kafka.protocol.metadata import MetadataRequest

    wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def security_options(client_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that every client of these brokers needs."""
    wanted = (*_NAMES, "ssl.", "sasl.")
    return {name: value for name, value in client_options.items() if name.startswith(wanted)}


def translated(client_options: Mapping[str, str]) -> dict[str, object]:
    """Return kafka-python's options for librdkafka's. Raises PipelineError for all others."""
    settings: dict[str, object] = {}
    for name, value in client_options.items():
        if name in _NAMES:
            settings[_NAMES[name]] = value
        elif name == TOKEN_URL:
            settings["sasl_oauth_token_provider"] = TokenFile(value).kafka_python()
        elif name == "ssl.endpoint.identification.algorithm" and value in _HOST_CHECKS:
            settings["ssl_check_hostname"] = _HOST_CHECKS[value]
        else:
            raise PipelineError(
                f"option 'kafka.{name}' with the value {value!r} is not supported: there are"
                f" {', '.join(f'kafka.{known}' for known in (*_NAMES, TOKEN_URL))}"
            )
    return settings
