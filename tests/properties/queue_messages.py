"""Strategies for the messages, the policies and the consumers of a subscription."""

from typing import Any

from hypothesis import strategies as st

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.records.record import Header
from tests.unit.queues.stage import header

FILTER = 'int(headers["wanted"]) == 1'
WANTED = {"yes": b"1", "no": b"0", "fail": b"?"}
POLICIES = st.fixed_dictionaries(
    {
        "delivery": st.sampled_from(["at_least_once", "at_least_once", "exactly_once", "at_most_once"]),
        "filter": st.sampled_from([None, None, FILTER]),
        "on_filter_error": st.sampled_from(["deliver", "skip", "dead_letter"]),
        "on_expiry": st.sampled_from(["drop", "dead_letter"]),
        "max_deliveries": st.sampled_from([0, 1, 2, 3]),
        "max_in_flight": st.sampled_from([2, 100_000, 100_000]),
        "retry": st.just({"base_ms": 100, "factor": 2.0, "cap_ms": 1000}),
        "paused": st.sampled_from([False, False, False, False, True]),
    }
)
ORDERS = st.sampled_from(
    [
        {},
        {},
        {"ordering": "key"},
        {"ordering": "key", "max_in_flight_per_key": 2},
        {"ordering": "key", "max_in_flight_per_key": 10},
        {"fair_by": "group"},
        {"priority_ageing_ms": 1000},
    ]
)
MESSAGES = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, b"a", b"b"]),
        "delay": st.sampled_from([0, 0, 0, 500, 5_000]),
        "ttl": st.sampled_from([0, 0, 0, 3_000]),
        "priority": st.sampled_from([4, 4, 0, 9]),
        "wanted": st.sampled_from(["yes", "yes", "no", "fail"]),
        "group": st.sampled_from(["", "g", "h"]),
    }
)
PRODUCERS = st.sampled_from(
    [ProducerIdentity(ProducerId(7), ProducerEpoch(0)), ProducerIdentity(ProducerId(8), ProducerEpoch(3))]
)
PICKS = st.lists(st.integers(0, 1_000), min_size=1, max_size=4)


def headers_of(spec: dict[str, Any]) -> tuple[Header, ...]:
    found: list[Header] = [("wanted", WANTED[spec["wanted"]])]
    if spec["group"]:
        found.append(("group", spec["group"].encode()))
    if spec["priority"] != 4:
        found.append(header("priority", spec["priority"]))
    if spec["delay"]:
        found.append(header("delay-ms", spec["delay"]))
    if spec["ttl"]:
        found.append(header("ttl-ms", spec["ttl"]))
    return tuple(found)
