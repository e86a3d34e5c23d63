"""The troubles that only some stories of a cluster have, beside the faults that any story may have.

    lose_logs       the directory of a partition, or those of all, are missing when their broker starts again
    lose_files      a file of a partition's directory is missing then
    restore_copy    a broker starts with an older copy of its data directory
    stale_copy      all brokers die, and one starts with an older copy that nothing gives away; see `stale_copies`
    bit_flips       one bit of a file is another one when the broker starts again; see `bit_flips`
    clone           a copy of a data directory is started beside the original
    flush_policies  `flush.policy` changes, of topics and of the cluster's default, also while a broker is away whose
                    power was cut
    minimums        `min.insync.replicas` changes, of topics and of the cluster's default
    own_defaults    single brokers are given defaults of their own, in their files and later, and must not follow them
    deletions       records are deleted on request
    table           a compacted topic in which values are put and deleted
    retention       topics whose old records are deleted, by age and by size
    churn           topics are made, grown, changed, deleted and made again under the same names
    members         groups whose members join, leave, die, and commit offsets, also too late
    rest            messages and transactions over REST, through any broker
    ordered_keys    a queue with key order, whose workers lease several messages of a key at once, and acknowledge late
    users           users are added and removed and get other passwords and rights, while clients log in and ask, over
                    Kafka and REST
    clocks          the wall clocks of single brokers are set forward and back
    five_brokers    there are five brokers, and one topic has a replica on each of them
    bulk            messages over REST that are larger than `network.max_request_bytes` of all brokers
    inspection      the messages of the queue are looked at: those that are not due, and those that are settled
    push            a subscription that pushes to a target which fails, hangs, is overloaded or cannot be reached
    checks          what is whole must acknowledge records within a bound, in the middle of the story

Each seed draws few of these, so that a story stays short, and meets each of them often enough to go deep.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from simulation.story_schedule import Step
from simulation.story_topics import TABLE_TOPIC

Action = tuple[str, str]
"""An actor and what it does."""


class Trouble(NamedTuple):
    """actions: of which each step is one. steps: how many a story may have. is_of_broker: each broker has the actor.
    topics: by name, with their settings. settings: of all brokers. replicas: of the topics.
    """

    actions: Sequence[Action]
    steps: Sequence[int]
    is_of_broker: bool = True
    topics: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    settings: Mapping[str, object] = MappingProxyType({})
    replicas: int = 3


BRIEF_TOPIC, SHORT_TOPIC, WIDE_TOPIC = "brief", "short", "wide"
RETENTION_MS, RETENTION_BYTES = 4_000, 1_000
STALL_TIMEOUT_MS = 3_000
"""`disk.stall_timeout_ms` where a check waits for it. Other faults of disks are longer, too."""

SHARED_TOPIC = "shared"
"""The topic that the members of groups share."""
MEMBERS, REST = "members", "rest"
REST_IN, REST_OUT = "rest-in", ("rest-out", "rest-log")
REST_TOPICS = (REST_IN, *REST_OUT)
CHURN, CLOCKS, OWN_DEFAULTS, RETENTION, TABLE = "churn", "clocks", "own_defaults", "retention", "table"
FIVE_BROKERS, USERS, GUARDED_TOPIC = "five_brokers", "users", "guarded"
ORDERED_KEYS, ORDERED_TOPIC = "ordered_keys", "ordered"
INSPECTION = "inspection"
BULK, BULK_TOPIC = "bulk", "bulky"
BULK_BYTES, BULK_REQUEST_BYTES = 150_000, 32_768
PUSH, PUSH_TOPIC = "push", "pushed"
_USER_ACTIONS = ("log_in", "ask", "read", "read", "write")
TROUBLES: Mapping[str, Trouble] = {
    "lose_logs": Trouble([("data", "lose_logs")], (2, 4, 8)),
    "lose_files": Trouble([("data", "lose_files")], (2, 4, 8)),
    "restore_copy": Trouble([("data", "restore_copy")], (2, 4)),
    "stale_copy": Trouble([("copy", "put_back_copy")], (1, 2)),
    "bit_flips": Trouble([("bits", "flip_bit")], (4, 8)),
    "clone": Trouble([("data", "clone")], (1, 2)),
    "flush_policies": Trouble(
        [("policies", "set_flush_policy"), ("policies", "set_default_flush_policy"), ("hardening", "harden_late")],
        (4, 8),
        is_of_broker=False,
    ),
    "minimums": Trouble([("policies", "set_minimum"), ("policies", "set_default_minimum")], (4, 8), is_of_broker=False),
    OWN_DEFAULTS: Trouble([("policies", "set_own_default")], (2, 4), is_of_broker=False),
    CLOCKS: Trouble([("clock", "set_clock")], (4, 8, 16)),
    FIVE_BROKERS: Trouble(
        [(f"producer-{WIDE_TOPIC}", "produce")],
        (8, 16),
        is_of_broker=False,
        topics={WIDE_TOPIC: {"min.insync.replicas": "3"}},
        replicas=5,
    ),
    BULK: Trouble(
        [("bulk-publisher", "publish")],
        (8, 16),
        is_of_broker=False,
        topics={BULK_TOPIC: {"max.message.bytes": str(2 * BULK_BYTES)}},
        settings={"network.max_request_bytes": BULK_REQUEST_BYTES, "topics.max_message_bytes": BULK_REQUEST_BYTES},
    ),
    "checks": Trouble(
        [("prober", "check_progress")],
        (1, 2),
        is_of_broker=False,
        settings={"disk.stall_timeout_ms": STALL_TIMEOUT_MS},
    ),
    TABLE: Trouble(
        [("table", "put_values"), ("table", "delete_keys")],
        (30, 50),
        is_of_broker=False,
        topics={
            TABLE_TOPIC: {
                "cleanup.policy": "compact",
                "delete.retention.ms": "100",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.ms": "300",
            }
        },
        settings={"broker.compaction_check_ms": 300},
    ),
    RETENTION: Trouble(
        [(f"producer-{BRIEF_TOPIC}", "produce"), (f"producer-{SHORT_TOPIC}", "produce")],
        (20, 40),
        is_of_broker=False,
        topics={
            BRIEF_TOPIC: {"retention.ms": str(RETENTION_MS), "segment.ms": "1000"},
            SHORT_TOPIC: {"retention.bytes": str(RETENTION_BYTES), "segment.ms": "500"},
        },
        settings={"broker.retention_check_ms": 500},
    ),
    CHURN: Trouble(
        [
            ("topic-admin", "create"),
            ("topic-admin", "grow"),
            ("topic-admin", "delete"),
            ("topic-admin", "recreate"),
            ("topic-admin", "configure"),
            ("topic-admin", "subscribe"),
            ("topic-admin", "add_schedule"),
            *[("topic-user", "produce")] * 5,
            *[("topic-user", "read")] * 3,
            *[("topic-user", "work")] * 2,
        ],
        (30, 60),
        is_of_broker=False,
        topics={"churned-due": {}},
    ),
    MEMBERS: Trouble(
        [
            (f"member-{number}", action)
            for number in range(1, 7)
            for action in ("join", "join", "join", "leave", "die", "commit_late")
        ],
        (20, 40),
        is_of_broker=False,
        topics={SHARED_TOPIC: {}},
        settings={
            "groups.initial_rebalance_delay_ms": 100,
            "groups.min_session_timeout_ms": 500,
            "groups.consumer_session_timeout_ms": 1_500,
            "groups.consumer_heartbeat_interval_ms": 300,
        },
    ),
    REST: Trouble(
        [
            *[("rest-publisher", "publish")] * 6,
            ("rest-publisher", "pipeline"),
            *[("rest-worker-1", "transact")] * 3,
            *[("rest-worker-2", "transact")] * 3,
        ],
        (30, 60),
        is_of_broker=False,
        topics={name: {} for name in REST_TOPICS},
    ),
    ORDERED_KEYS: Trouble(
        [
            *[("keys-publisher", "produce")] * 4,
            *[
                (f"keys-worker-{number}", action)
                for number in (1, 2)
                for action in ("lease", "lease", "lease", "settle", "settle", "ack_late")
            ],
        ],
        (40, 80),
        is_of_broker=False,
        topics={ORDERED_TOPIC: {}},
    ),
    USERS: Trouble(
        [
            ("user-admin", "set_password"),
            ("user-admin", "set_password"),
            ("user-admin", "remove_user"),
            *[("user-admin", action) for action in ("add_acl", "add_acl", "add_acl", "remove_acl", "remove_acl")],
            *[(f"user-{number}", action) for number in (1, 2, 3) for action in _USER_ACTIONS],
            *[("user-admin", "write")] * 3,
            *[(f"rest-user-{number}", action) for number in (1, 2) for action in ("publish", "lease", "lease")],
        ],
        (60, 120),
        is_of_broker=False,
        topics={GUARDED_TOPIC: {}},
        settings={"access.enabled": True, "access.super_users": "User:ANONYMOUS"},
    ),
    INSPECTION: Trouble(
        [
            *[("inspector", "list_scheduled")] * 2,
            *[("inspector", "show_settled")] * 2,
            ("publisher", "produce_delayed"),
            ("worker-1", "lease"),
            ("worker-1", "settle"),
        ],
        (60, 120),
        is_of_broker=False,
    ),
    PUSH: Trouble(
        [
            *[("push-publisher", "publish")] * 6,
            *[("push-target", action) for action in ("fail", "fail", "hang", "overload", "refuse")],
        ],
        (30, 60),
        is_of_broker=False,
        topics={PUSH_TOPIC: {}},
    ),
    "deletions": Trouble([("deleter", "delete_records"), ("deleter", "watch_start")], (10, 20), is_of_broker=False),
}
NOT_DRAWN = frozenset[str]()
"""The troubles that brokers do not survive yet."""

_NOT_TOGETHER = frozenset({TABLE, "restore_copy"})
"""An older copy of a compacted log may lack tombstones that all other replicas have removed since: an operator removes
such logs from the copy; see docs/operations.md.
"""

OF_A_LONE_BROKER = frozenset(
    {"flush_policies", CLOCKS, TABLE, RETENTION, CHURN, MEMBERS, REST, USERS, INSPECTION, PUSH, "deletions"}
)
"""The troubles that a story with one broker may have."""
_SHARE, _SHARE_ALONE = 0.08, 0.3
"""The share of stories that have a trouble."""


def drawn_troubles(seed: int, *, is_alone: bool) -> list[str]:
    """Return the names of one story's troubles. A new trouble does not change the stories without it."""
    share = _SHARE_ALONE if is_alone else _SHARE
    drawn = [name for name in TROUBLES if name not in NOT_DRAWN and _chance(seed, name).random() < share]
    if is_alone:
        return [name for name in drawn if name in OF_A_LONE_BROKER]
    return [name for name in drawn if name != TABLE] if {*drawn} >= _NOT_TOGETHER else drawn


def trouble_steps(seed: int, names: Iterable[str], story_ms: int, node_ids: Sequence[int]) -> list[Step]:
    """Return the steps of these troubles."""
    steps = []
    for name in names:
        chance, trouble = _chance(seed, f"{name} steps"), TROUBLES[name]
        for _ in range(chance.choice(trouble.steps)):
            actor, action = chance.choice(trouble.actions)
            actor = f"{actor}-{chance.choice(node_ids)}" if trouble.is_of_broker else actor
            steps.append(Step(chance.randrange(story_ms), actor, action, chance.getrandbits(16)))
    return steps


def _chance(seed: int, name: str) -> Random:
    return Random(f"{seed} trouble {name}")
