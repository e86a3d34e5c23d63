"""A few lines around the standard library's HTTP client: this API needs no client of its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Protocol
from urllib.parse import urlencode

Parameters = Mapping[str, object] | list[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `json`: None where there is no body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def problem(self) -> tuple[int, str, str]:
        """Status, kind and detail of a problem document, after a look at whether it is a sound one."""
        document = self.json
        assert self.headers["Content-Type"] == "application/problem+json"
        assert document.keys() == {"type", "title", "status", "detail", "kind", "retriable"}
        assert document["status"] == self.status
        assert document["type"] == f"urn:conveyor:problem:{document['kind'].replace('_', '-')}"
        return self.status, document["kind"], document["detail"]


class HasHttp(Protocol):
    """A broker, alone or in a cluster."""

    @property
    def http_url(self) -> str: ...


class Rest:
    """One connection to a broker. A body is bytes, or a document to be sent as JSON."""

    def __init__(self, broker: HasHttp) -> None:
        self._connection = HTTPConnection(broker.http_url.removeprefix("http://"), timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.send(method, f"{path}?{urlencode(query)}" if query else path, sent, headers)
        return self.receive()

    def send(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Half of `ask`; `receive` is the other."""
        self._connection.request(method, target, body, dict(headers or {}))

    def receive(self) -> Answer:
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())

    def get(self, path: str, **query: object) -> Answer:
        return self.ask("GET", path, query={name.rstrip("_"): value for name, value in query.items()})

    def post(self, path: str, body: object = None, **query: object) -> Answer:
        return self.ask("POST", path, body, query)

    def patch(self, path: str, body: object) -> Answer:
        return self.ask("PATCH", path, body)

    def delete(self, path: str) -> Answer:
        return self.ask("DELETE", path)

    def close(self) -> None:
        self._connection.close()

    def create(self, topic: str, *subscriptions: str, partitions: int = 1, **policy: object) -> None:
        """A topic, with subscriptions that begin at its start."""
        answer = self.post("/topics", {"name": topic, "partitions": partitions})
        assert answer.status == 201, answer.body
        for name in subscriptions:
            answer = self.post(f"/topics/{topic}/subscriptions", {"name": name, "start": "earliest", **policy})
            assert answer.status == 201, answer.body

    def publish(self, topic: str, *payloads: str, **more: object) -> list[str]:
        """Publish messages; returns their ids."""
        body = {"messages": [{"payload": payload, **more} for payload in payloads]}
        results = self.post(f"/topics/{topic}/messages:batch", body).json["results"]
        assert all(each["status"] == "ok" for each in results), results
        return [each["message_id"] for each in results]

    def lease(self, subscription: str, **query: object) -> list[dict[str, Any]]:
        """Lease messages, waiting for the first of them."""
        query = {"max_messages": 10, "wait": "10s", **query}
        answer = self.get(f"/subscriptions/{subscription}/messages", **query)
        assert answer.status == 200, answer.body
        messages: list[dict[str, Any]] = answer.json["messages"]
        return messages
