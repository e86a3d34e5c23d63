"""Random, malformed and type-confused REST requests: no answer is a 5xx, and no broker stops."""

import http.client
import json
import random
from typing import Any

from conveyor.http_api.application import ENDPOINTS
from conveyor.testing import Cluster

COUNT = 500
ATTACKED = [endpoint for endpoint in ENDPOINTS if endpoint.method != "DELETE"]
"""The topic and its subscription stay."""
FIELDS = (
    "name", "partitions", "replicas", "config", "start", "payload", "key", "headers", "delay", "deliver_at", "ttl",
    "priority", "messages", "ack_ids", "message_ids", "visibility", "reason", "filter", "retry", "max_deliveries",
    "ordering", "delivery", "cron", "topic", "offset", "timestamp", "partition",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 1e308, "", "orders", "earliest", "0-0", "2-1", "10s",
    "-5s", "99999999999999d", "\x00", "é" * 300, "a" * 70_000, [], {}, [1, None, {}], ["0-0"] * 3, "0000-00-00", "..",
    "9999-12-31T23:59:59Z", "((((((", "* * 31 2 *",
)  # fmt: skip
PATHS = ("orders", "billing", "0-0", "1-0", "nope", "%00", "%ff%fe", "%ed%a0%80", "a" * 300, "__consumer_offsets", "-1")
QUERY = ("0", "-1", "9" * 25, "1s", "abc", "", "%ff", "%00", "nan", "%ed%a0%80", "earliest")
PARAMETERS = ("wait", "max_messages", "visibility", "partition", "offset", "limit", "start", "%ff")


class Attacker:
    """Chooses requests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def target(self, path: str) -> str:
        choice, begin = self.chance.choice, "/topics/orders/" if self.chance.random() < 0.1 else ""
        parts = [choice(PATHS) if part.startswith("{") else part for part in path.split("/")]
        query = "&".join(f"{choice(PARAMETERS)}={choice(QUERY)}" for _ in range(self.chance.randrange(3)))
        return f"{begin}{'/'.join(parts)}?{query}"

    def value(self, depth: int = 0) -> Any:
        kind = self.chance.random()
        if depth < 3 and kind < 0.2:
            return {self.chance.choice(FIELDS): self.value(depth + 1) for _ in range(3)}
        return [self.value(depth + 1)] * 2 if depth < 3 and kind < 0.3 else self.chance.choice(VALUES)

    def body(self) -> bytes:
        kind = self.chance.random()
        if kind < 0.7:
            fields = self.chance.sample(FIELDS, self.chance.randrange(6))
            return json.dumps({field: self.value() for field in fields}).encode()
        return b"[" * 50_000 if kind < 0.8 else self.chance.randbytes(self.chance.randrange(60))


def test_no_request_stops_a_broker(conveyor_cluster: Cluster) -> None:
    """Each broker leads one partition of the topic, so most requests concern other leaders, too."""
    seed = random.randrange(1 << 32)
    attacker, brokers = Attacker(seed), list(conveyor_cluster.brokers.values())
    connections = [
        http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=60) for broker in brokers
    ]
    for path, document in (
        ("/topics", {"name": "orders", "partitions": 3, "replicas": 1}),
        ("/topics/orders/subscriptions", {"name": "billing", "start": "earliest"}),
    ):
        connections[0].request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
        assert connections[0].getresponse().read()
    for _ in range(COUNT):
        endpoint, connection = attacker.chance.choice(ATTACKED), attacker.chance.choice(connections)
        target, body = attacker.target(endpoint.path), attacker.body() if endpoint.method != "GET" else None
        connection.request(endpoint.method, target, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 500, f"seed {seed}: {endpoint.method} {target} {body!r:.300}: {content!r:.300}"
    assert all(broker.is_running for broker in brokers)
    for connection in connections:
        connection.request("GET", "/readyz")
        assert connection.getresponse().read().startswith(b'{"status":"ready"')
        connection.close()
