"""Settings of the delivery of messages by HTTP POST."""

from dataclasses import dataclass

from conveyor.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """Delivery of subscriptions' messages by HTTP POST; see docs/push.md."""

    allow_private: bool = setting(
        False,
        "Permit subscriptions to push to addresses that are not public: of this machine, of private networks, and of"
        " the link. Every client that may create a subscription then reaches what this broker reaches.",
    )
    max_targets: int = setting(
        1_000,
        "Subscriptions in the cluster that push. Beyond it, no more get a target.",
        unit="subscriptions",
        minimum=0,
        live=True,
    )
    max_connections: int = setting(
        256,
        "Connections of a broker to push targets, those that wait for the next request included.",
        unit="connections",
        minimum=1,
        maximum=65_536,
    )
    max_in_flight_bytes: int = setting(
        64 << 20,
        "Messages that a broker has in push requests at a time. A request of one message that is larger is made alone.",
        unit="bytes",
        minimum=1,
        live=True,
    )
    ca_file: str = setting(
        "",
        "A file (PEM) with the authorities that issue the certificates of push targets. Empty: those of the system.",
        unit="path",
    )
