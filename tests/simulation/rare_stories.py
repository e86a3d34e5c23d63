"""Stories of what `make_schedule` draws too rarely, for planted bugs."""

from random import Random

from simulation.clients.churn.churn_ledger import CHURNED, QUEUED
from simulation.clients.churn.topic_admin import MOST_PARTITIONS
from simulation.faults.ambushes import number_of
from simulation.story_rules import MOVES_TOPIC, NODE_IDS, RULES
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import DELAY_TOPIC, QUEUE_TOPIC
from tests.simulation.seeds import with_more

with_many_flips = with_more("bits", "flip_bit", 30, lambda chance: chance.getrandbits(16), "bit_flips")
"""Bits flip more often than the seed draws."""


def with_losses(seed: int) -> StorySchedule:
    """The only broker loses what is settled, and is killed again before its queues are loaded: met too rarely."""
    chance = Random(seed)
    steps = [Step(0, RULES, name, 1) for name in ("brokers", "flush_policies", QUEUE_TOPIC)]
    steps.append(Step(100, "policies", "set_default_flush_policy", 4))  # `os`.
    for begin_ms in range(500, 16_000, 3_000):
        loss_ms = begin_ms + 1_800
        published = [begin_ms + chance.randrange(300) for _ in range(4)]
        published += [loss_ms + chance.randrange(300) for _ in range(10)]
        steps += [Step(at_ms, "publisher", "produce", chance.getrandbits(16)) for at_ms in published]
        steps += [
            Step(begin_ms + 300 + chance.randrange(1_200), worker, action, 7 + 8 * chance.randrange(1_000))
            for worker in ("worker-1", "worker-2")
            for action in ("lease", "settle") * 5
        ]
        steps.append(Step(loss_ms, "broker-1", "cut_power", chance.randrange(2_000)))
        steps += [
            Step(loss_ms + 1 + chance.randrange(300), "broker-1", "crash", chance.getrandbits(15) | 1) for _ in range(3)
        ]
    return StorySchedule(seed, tuple(sorted(steps)))


def with_rot(seed: int) -> StorySchedule:
    """A broker whose log of messages is damaged leads before they are leased, and its operator comes late: drawn too
    rarely.
    """
    chance = Random(seed)
    steps = [Step(0, RULES, name, 1) for name in ("bit_flips", QUEUE_TOPIC)]
    for begin_ms in range(500, 16_000, 5_000):
        rotten, *others = chance.sample(NODE_IDS, len(NODE_IDS))
        steps += [
            Step(begin_ms + chance.randrange(400), "publisher", "produce", chance.getrandbits(16)) for _ in range(6)
        ]
        steps.append(Step(begin_ms + 600, f"bits-{rotten}", "flip_bit", 8_571 + 4 * chance.randrange(100)))
        steps += [Step(begin_ms + 1_600, f"broker-{other}", "crash", 30_000) for other in others]
        steps += [
            Step(begin_ms + 1_700 + chance.randrange(2_000), worker, action, 7 + 8 * chance.randrange(1_000))
            for worker in ("worker-1", "worker-2")
            for action in ("lease", "settle") * 5
        ]
    return StorySchedule(seed, tuple(sorted(steps)))


def with_lost_delays(seed: int) -> StorySchedule:
    """The only broker loses the log of a delayed topic, whose records are forwarded or wait: met by no other story."""
    chance = Random(seed)
    steps = [Step(0, RULES, name, 1) for name in ("brokers", DELAY_TOPIC)]
    for begin_ms in range(500, 16_000, 5_000):
        steps += [
            Step(begin_ms + chance.randrange(1_000), "delayer", "produce_delayed", 1 + 4 * chance.randrange(100))
            for _ in range(6)
        ]
        steps.append(Step(begin_ms + 2_000 + chance.randrange(500), "data-1", "lose_delayed", chance.getrandbits(10)))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_absences(seed: int) -> StorySchedule:
    """A broker is away whenever a topic is made again: drawn too rarely."""
    chance = Random(seed)
    steps = [Step(0, RULES, "churn", 1)]

    def use(action: str, at_ms: int) -> Step:
        actor = "topic-user" if action == "produce" else "topic-admin"
        return Step(at_ms, actor, action, len(CHURNED) * chance.randrange(1 << 12))

    for begin_ms in range(0, 20_000, 5_000):
        steps += [use("recreate", begin_ms), use("recreate", begin_ms + 2_500)]
        steps += [use("produce", begin_ms + 200 + chance.randrange(4_500)) for _ in range(12)]
        away_ms = begin_ms + 1_000 + chance.randrange(1_000)
        steps.append(Step(away_ms, f"broker-{chance.choice(NODE_IDS)}", "crash", 40_000 + 2 * chance.randrange(5_000)))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_growth(seed: int) -> StorySchedule:
    """Messages are published once a topic with a subscription has grown: drawn too rarely."""
    chance = Random(seed)
    steps = [Step(0, RULES, "churn", 1)]

    def use(actor: str, action: str, at_ms: int, number: int = 0) -> Step:
        return Step(at_ms, actor, action, CHURNED.index(QUEUED) + len(CHURNED) * number)

    for begin_ms in range(0, 12_000, 4_000):
        steps += [
            use("topic-admin", "recreate", begin_ms),
            use("topic-admin", "subscribe", begin_ms + 1_000),
            use("topic-admin", "grow", begin_ms + 2_000, MOST_PARTITIONS - 2),
        ]
        steps += [
            use("topic-user", "produce", begin_ms + 2_000 + chance.randrange(1_000), chance.randrange(1 << 12))
            for _ in range(20)
        ]
    return StorySchedule(seed, tuple(sorted(steps)))


def with_cut_off_ends(seed: int) -> StorySchedule:
    """The coordinator of transactions is cut off from the other brokers, and loses power, as clients commit: drawn too
    rarely.
    """
    chance = Random(seed)
    steps = [Step(0, RULES, MOVES_TOPIC, len(NODE_IDS))]
    for begin_ms in range(500, 16_000, 3_000):
        numbers = number_of("isolate", 0, 30), number_of("cut_power", chance.randrange(40), chance.randrange(60))
        steps += [Step(begin_ms, "ambushes", "at_end", number) for number in numbers]
        steps += [
            Step(begin_ms + chance.randrange(2_000), f"mover-{mover}", "transact", chance.getrandbits(16))
            for mover in (1, 2, 3)
        ]
    return StorySchedule(seed, tuple(sorted(steps)))
