"""The transaction coordinators."""

from dataclasses import dataclass

from conveyor.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsSettings:
    """Transactions."""

    state_partitions: int = setting(
        8,
        "Partitions of `__transaction_state`, the topic that holds the state of transactions. The number of an existing"
        " topic does not change.",
        unit="partitions",
        kafka="transaction.state.log.num.partitions",
        minimum=1,
        maximum=1000,
    )
    state_replication_factor: int = setting(
        3,
        "Replicas of `__transaction_state`. Transactions cannot start before that many brokers have registered, because"
        " the topic is not created. With embedded metadata, no more than there are workers.",
        unit="replicas",
        kafka="transaction.state.log.replication.factor",
        minimum=1,
    )
    state_flush_policy: str = setting(
        "ack",
        "When a decision about a transaction counts, for a `__transaction_state` that is yet to be created. `ack`: once"
        " it is on the disk. `os`: once it is in the page cache, as in Kafka; a power failure may then commit a"
        " transaction in some partitions and abort it in others. Later, change `flush.policy` of that topic.",
        choices=("ack", "os"),
    )
    max_timeout_ms: int = setting(
        900_000,
        "The longest transaction timeout that a producer can request.",
        unit="ms",
        kafka="transaction.max.timeout.ms",
        minimum=1,
        maximum=2_147_483_646,
    )
    id_expiration_ms: int = setting(
        7 * 24 * 3_600_000,
        "How long the coordinator remembers a transactional id that has no transaction.",
        unit="ms",
        kafka="transactional.id.expiration.ms",
        minimum=1,
    )
    answer_retention_ms: int = setting(
        300_000,
        "How long the answer to a `POST /transactions` with an `id` is kept. Until then a request with the same id gets"
        " this answer; afterwards it is executed again.",
        unit="ms",
        minimum=60_000,
        maximum=86_400_000,
    )
    two_phase_commit_enable: bool = setting(
        False,
        "Whether producers may use two-phase commit (KIP-939). Their transactions have no timeout: consumers of"
        " committed records wait for as long as one is open, also if its producer never comes back.",
        kafka="transaction.two.phase.commit.enable",
    )
