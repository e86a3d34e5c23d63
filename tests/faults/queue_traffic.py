"""Traffic of queues over REST, by clients that outlive their broker and write down whatever it answered them."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any

from tests.processes import BrokerProcess

TOPIC = "work"
GRAVE = "grave"
"""The tag of messages that everybody rejects, and nobody redrives: they stay dead until the end."""

_AHEAD = 2_000
"""How many acknowledgements may be owing when publishers send: two for each message, and each sends half of them."""
_PATIENCE_S = 60.0
_DONE = {"ack": "acked", "nack": "nacked", "reject": "rejected", "extend": "extended"}
_FATES = {"ack": 75, "nack": 10, "reject": 4, "extend": 3, "leave": 8}


class UnexpectedAnswerError(Exception):
    """An answer that no client should get, be its broker killed or not."""


class Site:
    """What all clients share: the broker, whether it is up, and a count of what they were answered."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.up = threading.Event()
        self.up.set()
        self.is_over = False
        self.changed = threading.Condition()
        self.counts: Counter[str] = Counter()
        self._callers: list[Caller] = []
        self._moment = 0

    def caller(self) -> "Caller":
        self._callers.append(caller := Caller(self))
        return caller

    def close(self) -> None:
        for each in self._callers:
            each.close()
        self.broker.kill()

    def end(self) -> None:
        """Let every client come to its end."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def restart(self) -> None:
        """SIGKILL, and a start on the same ports."""
        addresses = self.broker.kafka, self.broker.http
        self.up.clear()
        self.broker.kill()
        self.broker.start()
        assert (self.broker.kafka, self.broker.http) == addresses
        self.up.set()
        self.count("kills")

    def count(self, what: str, number: int = 1) -> None:
        with self.changed:
            self.counts[what] += number
            self.changed.notify_all()

    def wait_for(self, what: str, number: int) -> None:
        """Until so many are counted, or all is over."""
        with self.changed:
            is_enough = self.changed.wait_for(lambda: self.counts[what] >= number or self.is_over, _PATIENCE_S)
        assert is_enough, f"{number} {what} did not come about: {self.counts}"

    def moment(self) -> int:
        """A number that is higher with each call: what happened before what."""
        with self.changed:
            self._moment += 1
            return self._moment


class Caller:
    """One client's connection."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._connection = HTTPConnection(site.broker.http, timeout=_PATIENCE_S)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What was answered; None if the broker was gone before it answered. Returns once it is up again."""
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body))
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException):
            self._connection.close()
            self._site.count("requests without an answer")
            assert self._site.up.wait(_PATIENCE_S)
            return None
        if response.status >= 300:
            raise UnexpectedAnswerError(f"{method} {path}: {response.status} {answer.decode()}")
        return json.loads(answer)

    def close(self) -> None:
        self._connection.close()

    def insist(self, method: str, path: str, body: object = None) -> Any:
        """The same, asked until it is answered."""
        while (answer := self.ask(method, path, body)) is None:
            pass
        return answer


class Publisher:
    """Publishes numbered messages in batches. with_id: each has a dedup id, and is sent until it is acknowledged."""

    def __init__(self, site: Site, name: str, *, with_id: bool) -> None:
        self.name = name
        self.acknowledged: dict[str, str] = {}
        """Payloads by the ids of their messages."""
        self.unanswered: set[str] = set()
        self._site = site
        self._with_id = with_id

    def run(self) -> None:
        caller, sent = self._site.caller(), 0
        while not self._site.is_over:
            self._site.wait_for("acked", 4 * len(self.acknowledged) - _AHEAD)
            batch = [self._message(number) for number in range(sent, sent + 10)]
            sent += len(batch)
            ask = caller.insist if self._with_id else caller.ask
            answer = ask("POST", f"/topics/{TOPIC}/messages:batch", {"messages": batch})
            if answer is None:
                self.unanswered |= {each["payload"] for each in batch}
            else:
                self._write_down(batch, answer["results"])

    def _message(self, number: int) -> dict[str, Any]:
        payload = f"{self.name}-{number}"
        message = {"payload": payload, "key": f"k{number % 7}", "priority": number % 10}
        message["tag"] = GRAVE if number % 40 == 7 else "life"
        if number % 5 == 0:
            message["delay"] = "20ms"
        if self._with_id:
            message["dedup_id"] = payload
        return message

    def _write_down(self, batch: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        for message, result in zip(batch, results, strict=True):
            if result["status"] != "ok":
                raise UnexpectedAnswerError(result)
            self.acknowledged[result["message_id"]] = message["payload"]
        self._site.count("published", len(batch))
        self._site.count("published before, and told so", sum(each.get("duplicate", False) for each in results))


class Ledger:
    """What the consumers of one subscription were given and answered, by the ids of the messages."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self.acked: dict[str, int] = {}
        """When a confirmation had come."""
        self.unanswered: set[str] = set()
        """An acknowledgement was sent, and no answer came."""
        self.delivered: Counter[str] = Counter()
        self.again: list[str] = []
        """Leased by a request that began after its acknowledgement was confirmed."""
        self.payloads: dict[str, set[str]] = {}
        self._site = site

    def leased(self, messages: Iterable[dict[str, Any]], asked_at: int) -> None:
        with self._site.changed:
            for each in messages:
                message_id = each["message_id"]
                self.delivered[message_id] += 1
                self.payloads.setdefault(message_id, set()).add(each["payload"])
                if self.acked.get(message_id, asked_at) < asked_at:
                    self.again.append(message_id)

    def confirmed(self, message_ids: Iterable[str]) -> None:
        now = self._site.moment()
        for each in message_ids:
            self.acked.setdefault(each, now)


class Consumer:
    """Leases messages and settles them in every way there is: chance says how, from a seed."""

    def __init__(self, site: Site, ledger: Ledger, seed: int) -> None:
        self._site = site
        self._ledger = ledger
        self._path = f"/subscriptions/{ledger.name}"
        self._chance = random.Random(seed)
        self._caller = site.caller()

    def run(self) -> None:
        while not self._site.is_over:
            leased = self.lease(10, "500ms")
            for verb, messages in self._fates(leased):
                self.settle(verb, messages)

    def lease(self, count: int, wait: str) -> list[dict[str, Any]]:
        asked_at = self._site.moment()
        answer = self._caller.ask("GET", f"{self._path}/messages?max_messages={count}&wait={wait}")
        leased: list[dict[str, Any]] = [] if answer is None else answer["messages"]
        self._ledger.leased(leased, asked_at)
        return leased

    def settle(self, verb: str, messages: list[dict[str, Any]]) -> None:
        """Settle messages, and write down which of them were confirmed."""
        if not messages:
            return
        body: dict[str, Any] = {"ack_ids": [each["ack_id"] for each in messages]}
        more = {"extend": {"visibility": "800ms"}, "nack": {"delay": "5ms"}}.get(verb, {})
        answer = self._caller.ask("POST", f"{self._path}/{verb}", body | more)
        named = [each["message_id"] for each in messages]
        if answer is None:
            self._ledger.unanswered |= set(named) if verb == "ack" else set()
            return
        results = zip(named, answer["results"], strict=True)
        done = [message_id for message_id, result in results if _is_done(result)]
        if verb == "ack":
            self._ledger.confirmed(done)
        self._site.count(_DONE[verb], len(done))
        self._site.count("refused, as the lease was lost", len(named) - len(done))

    def _fates(self, leased: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        by_verb: dict[str, list[dict[str, Any]]] = {}
        for each in leased:
            verb = self._chance.choices(list(_FATES), list(_FATES.values()))[0]
            by_verb.setdefault("reject" if each["tag"] == GRAVE else verb, []).append(each)
        self._site.count("left until their leases end", len(by_verb.pop("leave", [])))
        yield from by_verb.items()


class Redriver:
    """Delivers dead letters again, of every subscription, time after time."""

    def __init__(self, site: Site, names: Iterable[str]) -> None:
        self._site = site
        self._names = tuple(names)
        self._caller = site.caller()

    def run(self) -> None:
        done = 0
        while not self._site.is_over:
            self._site.wait_for("rejected", done + 10)
            done = self._site.counts["rejected"]
            self.redrive()

    def redrive(self) -> None:
        for name in self._names:
            answer = self._caller.ask("POST", f"/subscriptions/{name}/redrive", {"filter": f"tag != '{GRAVE}'"})
            if answer is not None:
                self._site.count("redriven", answer["redriven"])


def _is_done(result: dict[str, Any]) -> bool:
    if result["status"] != "ok" and result["error"]["kind"] != "lease_lost":
        raise UnexpectedAnswerError(result)
    return bool(result["status"] == "ok")
