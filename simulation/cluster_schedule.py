"""The schedule of a story: its rules, what clients do, and the faults of the brokers and of the network.

Each seed chooses which faults its story has, and how often (swarm testing): a story with a few kinds of faults goes
deeper than one with a little of all. Source: Groce, Zhang, Eide, Chen, Regehr, "Swarm Testing" (ISSTA 2012).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from simulation.faults.store_faults import LONE_STORE_FAULTS, STORE_FAULTS
from simulation.story_rules import (
    LONE_TOPIC,
    MOVES_TOPIC,
    NODE_IDS,
    PAIR_TOPIC,
    RULES,
    SOFT_TOPIC,
    make_rules,
    rules_of,
)
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import DELAY_TOPIC, QUEUE_TOPIC
from simulation.troubles import (
    FIVE_BROKERS,
    NOT_DRAWN,
    OF_A_LONE_BROKER,
    TROUBLES,
    Action,
    drawn_troubles,
    trouble_steps,
)

_STORIES_MS = (8_000, 16_000, 30_000)
_CLIENT_STEPS = 120
_FAULTS = (0, 4, 8, 16, 32)
_OPERATOR_STEPS = (0, 0, 0, 10)
_WEIGHTS = (0, 0, 1, 3)

_CLIENTS: Sequence[Action] = (
    ("producer-all", "produce"),
    ("producer-all", "produce"),
    ("producer-pipelined", "produce"),
    ("producer-one", "produce"),
    ("producer-one", "produce"),
    ("producer-plain", "produce"),
    ("pipeliner", "send"),
    ("reader", "read"),
    ("reader", "read"),
    ("reader", "read"),
    ("watcher", "watch"),
    ("watcher", "watch"),
    ("committer", "commit"),
    ("committer", "fetch_offset"),
)
_OF_TOPICS: Mapping[str, Sequence[Action]] = {
    QUEUE_TOPIC: (
        ("publisher", "produce"),
        ("publisher", "produce_delayed"),
        ("worker-1", "lease"),
        ("worker-1", "settle"),
        ("worker-2", "lease"),
        ("worker-2", "settle"),
    ),
    DELAY_TOPIC: (("delayer", "produce_delayed"),),
    LONE_TOPIC: (("producer-lone", "produce"),),
    PAIR_TOPIC: (("producer-pair", "produce"), ("producer-pair", "produce")),
    SOFT_TOPIC: (("producer-soft", "produce"), ("producer-soft", "produce")),
}
_OF_TRANSACTIONS: Sequence[Action] = (
    ("mover-1", "transact"),
    ("mover-1", "transact"),
    ("mover-2", "transact"),
    ("mover-2", "transact"),
    ("mover-2", "take_over"),
    ("mover-3", "transact"),
    ("mover-3", "transact"),
    ("mover-3", "abandon"),
    ("mover-1", "send_late"),
    ("mover-3", "send_late"),
    ("deserter", "desert"),
    ("deserter", "send_late"),
    ("auditor", "read"),
    ("auditor", "read"),
    ("auditor", "read"),
    ("auditor", "read"),
)
_TRANSACTIONS_SHARE = 0.19
_ALONE_SHARE = 0.12
"""The share of stories with one broker."""
_COORDINATOR_REPLICAS = (1, 2, 3, 3)
_TRANSACTION_STEPS, _REPLACED_STEPS = 40, 60
_OF_TRANSACTION_AMBUSHES = (0, 0, 4, 8)
_BROKER_FAULTS = (
    "crash",
    "cut_power",
    "cut_power_within",
    "restart",
    "pause",
    "wipe",
    "hang_disk",
    "fail_syncs",
    "fail_appends",
    "fill_disk",
)
_LONE_BROKER_FAULTS = (
    "crash",
    "cut_power",
    "cut_power_within",
    "restart",
    "pause",
    "hang_disk",
    "fail_syncs",
    "fail_appends",
    "fail_renames",
    "fill_disk",
)
_NETWORK_FAULTS = ("cut_one_way", "cut_both_ways", "isolate", "reset")
_AMBUSHES = ("at_join", "at_leave", "at_election", "at_return")
_TRANSACTION_AMBUSHES = ("at_begin", "at_end")
_OPERATIONS = ("reassign", "reassign", "reassign", "cancel_reassignment", "elect_preferred", "set_min_insync")
_ALL_POWER = "cut_all_power"
FAULTS = frozenset(
    {
        *_BROKER_FAULTS,
        *_LONE_BROKER_FAULTS,
        *STORE_FAULTS,
        *LONE_STORE_FAULTS,
        *_NETWORK_FAULTS,
        *_AMBUSHES,
        *_TRANSACTION_AMBUSHES,
        *_OPERATIONS,
        _ALL_POWER,
        *(action for name in TROUBLES.keys() - NOT_DRAWN for _, action in TROUBLES[name].actions),
    }
)
"""All faults, ambushes and operations, and what the clients of troubles do."""


def make_schedule(seed: int, troubles: Sequence[str] | None = None, brokers: int | None = None) -> StorySchedule:
    """Return the schedule of a seed; the same on every machine.

    troubles, brokers: by default those that the seed draws. brokers: 1 or 3; five brokers are a trouble. With troubles
    that a lone broker cannot have, no seed draws one.
    """
    chance = Random(f"{seed} cluster schedule")
    if brokers is None:
        may_be_alone = OF_A_LONE_BROKER.issuperset(troubles or ())
        is_drawn_alone = Random(f"{seed} brokers").random() < _ALONE_SHARE
        brokers = 1 if is_drawn_alone and may_be_alone else len(NODE_IDS)
    is_alone = brokers == 1
    transactions = Random(f"{seed} transactions")
    rules, story_ms = make_rules(chance, brokers), chance.choice(_STORIES_MS)
    clients = [*_CLIENTS]
    for topic, actions in _OF_TOPICS.items():
        clients += actions if any(rule.action == topic for rule in rules) else ()
    faults = _lone_faults(chance) if is_alone else _chosen_faults(chance)
    steps = [_step(chance, story_ms, *chance.choice(clients)) for _ in range(_CLIENT_STEPS)]
    steps += [_step(chance, story_ms, *chance.choice(faults)) for _ in range(chance.choice(_FAULTS))]
    operations = 0 if is_alone else chance.choice(_OPERATOR_STEPS)
    steps += [_step(chance, story_ms, "operator", chance.choice(_OPERATIONS)) for _ in range(operations)]
    if transactions.random() < _TRANSACTIONS_SHARE:
        rules.append(Step(0, RULES, MOVES_TOPIC, transactions.choice(_COORDINATOR_REPLICAS)))
        steps = _with_transactions(transactions, story_ms, steps)
    drawn = drawn_troubles(seed, is_alone=is_alone) if troubles is None else troubles
    rules += [Step(0, RULES, name, 1) for name in drawn]
    node_ids = rules_of(StorySchedule(seed, tuple(rules))).node_ids
    if FIVE_BROKERS in drawn:
        steps = [_spread(step, node_ids) for step in steps]
    added = trouble_steps(seed, drawn, story_ms, node_ids)
    return StorySchedule(seed, (*rules, *sorted([*steps[len(added) :], *added])))


def _with_transactions(chance: Random, story_ms: int, steps: Sequence[Step]) -> list[Step]:
    """Replace some of the requests of other clients, so that a story with transactions costs no more than another."""
    kept = [*steps[_REPLACED_STEPS:]]
    kept += [_step(chance, story_ms, *chance.choice(_OF_TRANSACTIONS)) for _ in range(_TRANSACTION_STEPS)]
    return kept + [
        _step(chance, story_ms, "ambushes", chance.choice(_TRANSACTION_AMBUSHES))
        for _ in range(chance.choice(_OF_TRANSACTION_AMBUSHES))
    ]


def _chosen_faults(chance: Random) -> Sequence[Action]:
    """Return the faults of one story, each as often as it weighs."""
    everywhere = [("network", action) for action in _NETWORK_FAULTS] + [("machines", _ALL_POWER)]
    everywhere += [("ambushes", action) for action in _AMBUSHES] + [
        ("operator", action) for action in sorted({*_OPERATIONS})
    ]
    of_brokers = [("broker", action) for action in _BROKER_FAULTS] + [("store", action) for action in STORE_FAULTS]
    faults: list[Action] = []
    for actor, action in everywhere:
        faults += [(actor, action)] * chance.choice(_WEIGHTS) * (1 if action == _ALL_POWER else len(NODE_IDS))
    for actor, action in of_brokers:
        weight = chance.choice(_WEIGHTS)
        faults += [(f"{actor}-{number}", action) for number in NODE_IDS] * weight
    return faults or [("broker-1", "crash")]


def _lone_faults(chance: Random) -> Sequence[Action]:
    """Return the faults of a story with one broker, each as often as it weighs."""
    of_broker = [("broker-1", action) for action in _LONE_BROKER_FAULTS]
    faults: list[Action] = []
    for fault in (*of_broker, *(("store-1", action) for action in LONE_STORE_FAULTS)):
        faults += [fault] * chance.choice(_WEIGHTS)
    return faults or [("broker-1", "crash")]


def _spread(step: Step, brokers: Sequence[int]) -> Step:
    """Return a step that is of any of these brokers if it is of a broker."""
    kind, _, number = step.actor.rpartition("-")
    if kind not in ("broker", "store"):
        return step
    return replace(step, actor=f"{kind}-{brokers[(int(number) + step.number) % len(brokers)]}")


def _step(chance: Random, story_ms: int, actor: str, action: str) -> Step:
    return Step(chance.randrange(story_ms), actor, action, chance.getrandbits(16))
