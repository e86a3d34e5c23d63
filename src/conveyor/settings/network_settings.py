"""The listeners of a broker, and the limits of its connections."""

from dataclasses import dataclass

from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.settings.setting import setting

_ORIGIN = (
    r"(?!http://[^,]*:80(,|$))(?!https://[^,]*:443(,|$))"
    r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?"
)
"""As a browser writes it (RFC 6454): in lower case, and without the scheme's own port. `null` is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Listeners, and limits of connections and requests."""

    kafka: str = setting(
        "127.0.0.1:9092",
        "Addresses of the Kafka listeners; port 0 picks a free port. A listener is named PLAINTEXT, or as the text"
        " before its address says, such as `SSL://0.0.0.0:9093`.",
        unit="list of host:port or NAME://host:port",
        kafka="listeners",
    )
    listener_protocols: str = setting(
        "",
        "The security protocol of each Kafka listener: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`. A listener"
        " that is not in the list has the protocol of its name.",
        unit="list of NAME:protocol, such as INSIDE:PLAINTEXT,OUTSIDE:SSL",
        kafka="listener.security.protocol.map",
    )
    sasl_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "The mechanisms by which clients log in at listeners with SASL. With PLAIN they send their passwords, and with"
        " OAUTHBEARER a token, for which `sasl.jwks_file` or `sasl.jwks_url` has to be set.",
        kafka="sasl.enabled.mechanisms",
        choices=MECHANISMS,
        is_list=True,
    )
    http: str = setting(
        "127.0.0.1:8080",
        "Address of the HTTP listener; port 0 picks a free port. With `https://` before it, clients connect by TLS.",
        unit="host:port or https://host:port",
    )
    peer: str = setting(
        "",
        "Address of the listener for the other brokers of the cluster, who prove that they know its secret; by default"
        " a free port on the host of `network.kafka`. Brokers with embedded metadata have no such listener.",
        unit="host:port",
    )
    peer_advertised: str = setting(
        "",
        "The address that the broker announces to the other brokers; by default the address of its listener for them.",
        unit="host:port",
    )
    advertised: str = setting(
        "",
        "The addresses that the broker announces to the clients of its Kafka listeners, each with the listener's name"
        " as in `network.kafka`; by default the address of the listener.",
        unit="list of host:port or NAME://host:port",
        kafka="advertised.listeners",
    )
    http_advertised: str = setting(
        "",
        "The HTTP address that the broker announces to Conveyor's commands: of itself, or of a proxy or gateways of its"
        " cluster; by default the address of its HTTP listener. Workers announce the same one.",
        unit="an address such as https://queues.example",
        pattern=r"(https?://[^\s/?#]+(/[^\s?#]*)?)?",
    )
    insecure: bool = setting(False, "Allow listeners outside of loopback although clients are not authenticated.")
    http_users: bool = setting(
        False,
        "HTTP clients log in as users: by Basic, or by a bearer token if `sasl.jwks_file` or `sasl.jwks_url` is set. A"
        " token of `network.token_file` or a certificate of a client does as well.",
    )
    token_file: str = setting(
        "",
        "A file of bearer tokens, one per line. HTTP clients must send one of them; by default they need no token.",
    )
    http_cors_origins: str = setting(
        "",
        "The origins of other sites whose pages may use the HTTP API in a browser (CORS); by default none. A page's own"
        " origin has to be here exactly. `*` permits the pages of all sites, and is refused where HTTP clients log in:"
        " with `network.http_users`, `network.token_file` or `tls.client_auth`.",
        unit="list of origins such as https://app.example without a path or the scheme's own port, or * alone",
        pattern=rf"(\*|{_ORIGIN}(,{_ORIGIN})*)?",
        is_list=True,
    )
    max_request_bytes: int = setting(
        104_857_600,
        "Maximum size of a Kafka request. It does not limit what brokers send each other.",
        unit="bytes",
        kafka="socket.request.max.bytes",
        minimum=1024,
        maximum=(1 << 31) - 1,
    )
    max_request_items: int = setting(
        20_000,
        "Maximum number of items of a Kafka request: the elements of all its arrays together, such as its topics and"
        " their partitions, and each full KiB of a name or other text. The broker closes the connection of a client"
        " that sends more. It decodes a request at once, in up to 0.2 us for each item, while its other clients wait.",
        unit="items",
        minimum=1000,
    )
    max_connections: int = setting(
        10_000,
        "Maximum number of open Kafka connections. One more takes the place of the oldest whose client has not logged"
        " in, or not finished its handshake of TLS; if there is none, it is refused. TLS takes 28 to 44 KiB of memory"
        " for each connection.",
        kafka="max.connections",
        minimum=1,
    )
    max_connections_per_address: int = setting(
        10_000,
        "Maximum number of open connections from one address, for Kafka and HTTP together.",
        kafka="max.connections.per.ip",
        minimum=1,
    )
    max_connections_per_user: int = setting(
        10_000,
        "Maximum number of open Kafka connections of one user: who has logged in, or shown a certificate.",
        minimum=1,
    )
    max_http_connections: int = setting(
        1_000,
        "Maximum number of open HTTP connections; Kafka connections are not counted. `/healthz`, `/readyz` and"
        " `/metrics` are answered even above the limit.",
        unit="connections",
        minimum=1,
    )
    max_idle_ms: int = setting(
        600_000,
        "The broker closes a connection that has finished no request for this long.",
        unit="ms",
        kafka="connections.max.idle.ms",
        minimum=1,
    )
    max_receive_ms: int = setting(
        60_000,
        "Maximum time from the first byte of a request, or of its body, to the last; a slower connection is closed.",
        unit="ms",
        minimum=1,
    )
    drain_timeout_ms: int = setting(
        10_000, "How long a stopping broker waits for clients to read their pending responses.", unit="ms", minimum=0
    )
    max_buffered_bytes: int = setting(
        268_435_456,
        "Maximum memory of requests that are being received or processed, Kafka and HTTP together. Requests above 512"
        " KiB wait for free memory before they are read. If smaller requests alone reach the limit, the broker closes"
        " the Kafka connection that holds most of them, and refuses bodies of HTTP. A Fetch that waits for records"
        " counts as about 3 KiB, and 700 bytes for each partition of its session. Responses in memory above 64 KiB that"
        " Kafka clients have not read may take as much again; then the connection where they have waited longest is"
        " closed.",
        unit="bytes",
        kafka="queued.max.request.bytes",
        minimum=1 << 20,
    )
    max_in_flight: int = setting(
        1_000, "Maximum number of unanswered requests on one connection.", unit="requests", minimum=1
    )
    max_fetch_sessions: int = setting(
        1_000,
        "Maximum number of incremental fetch sessions; a consumer without a session sends its whole partition list in"
        " every fetch.",
        unit="sessions",
        kafka="max.incremental.fetch.session.cache.slots",
        minimum=0,
    )
    max_fetch_bytes: int = setting(
        57_671_680, "Maximum size of a fetch response.", unit="bytes", kafka="fetch.max.bytes", minimum=1024
    )

    @property
    def cors_origins(self) -> frozenset[str]:
        """The origins whose pages may use the HTTP API, which may be `*` alone."""
        return frozenset(filter(None, self.http_cors_origins.split(",")))
