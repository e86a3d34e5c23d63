"""Filters that are made to be slow, on messages that are made for them: they cost the broker next to nothing.

What is measured is the broker's CPU time, which other work on the machine does not change. FILTER_ATTACKS makes more
messages of each.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rest_client import RestClient, cpu_seconds, resident_bytes
from tests.processes import BrokerProcess

MESSAGES = int(os.environ.get("FILTER_ATTACKS", "3"))
CPU_SECONDS = 0.5
"""For each message. Without a bound each takes 2 to 280 seconds."""
MEMORY_BYTES = 256 << 20

NUMBERS = list(range(100_000))
ATTACKS = {
    "join": ("+".join(["payload.s"] * 380) + " == ''", {"s": "a" * 900_000}),
    "search": (
        f"payload.m.exists(x, {' || '.join(['payload.s.contains(tag)'] * 100)})",
        {"m": NUMBERS[:4_000], "s": "a" * 25_000},
    ),
    "lists": (f"size({'+'.join(['payload.l'] * 300)}) == 0", {"l": NUMBERS}),
    "in": (" || ".join(["payload.n in payload.l"] * 150), {"l": NUMBERS, "n": -1}),
    "filter": ("payload.l.filter(x, x != -1).size() == 0", {"l": NUMBERS[:10_000]}),
    "copies": ("payload.l.all(x, payload.l[0] == 0)", {"l": NUMBERS[:10_000]}),
    "pattern": ("payload.s.matches('[ab]*a[ab]{900}c')", {"s": "ab" * 450_000}),
    "lock": ("payload == null", [[]] * 250_000),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_filter_on_a_message_made_for_it_does_not_hold_up_the_broker(broker: BrokerProcess, attack: str) -> None:
    expression, payload = ATTACKS[attack]
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t"})
    policy = {"name": "s", "filter": expression, "start": "earliest", "on_filter_error": "skip"}
    client.ask("POST", "/topics/t/subscriptions", policy)
    for _ in range(MESSAGES):
        client.ask("POST", "/topics/t/messages", json.dumps(payload).encode())
    began_seconds, before_bytes = cpu_seconds(broker), resident_bytes(broker)
    assert client.ask("GET", "/subscriptions/s/messages") == {"messages": []}
    assert cpu_seconds(broker) - began_seconds < CPU_SECONDS * MESSAGES
    assert resident_bytes(broker) - before_bytes < MEMORY_BYTES
    assert client.ask("GET", "/subscriptions/s")["filter_errors"] == MESSAGES
    client.close()
    assert broker.log().count("filter failed") == 1
