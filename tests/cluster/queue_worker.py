"""One worker of a queue: it leases messages over REST, and publishes their results and acknowledges them in one
transaction.

python -m tests.cluster.queue_worker <addresses> <worker> <start> <history file>

addresses: of the brokers' HTTP doors, separated by commas; each request goes to any of them. It runs until SIGTERM. For
the history file: see `transactional_worker`.
"""

import signal
import sys
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.cluster.transactional_worker import HistoryFile, results_of

QUEUE_RESULTS, QUEUE_LEDGER = "queue-results", "queue-ledger"
SUBSCRIPTION = "workers"

_TIMEOUT = "6s"
_PATIENCE_S = 60.0
_LEASE = "max_messages=20&wait=300ms&visibility=8s"
_ABORTS = 0.08
_PAUSE_S = 0.05


class ResponseError(Exception):
    """A response that is no success. kind: of the problem; `no_answer` if there was no response."""

    def __init__(self, kind: str, status: int = 0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status


class QueueWorker:
    """See the module's docstring. process: the name of this start of the worker."""

    def __init__(self, addresses: list[str], process: str, history: HistoryFile) -> None:
        self._addresses = addresses
        self._process = process
        self._history = history
        self._chance = Random(process)
        self._serial = 0
        self._is_over = False

    def stop(self, *_: object) -> None:
        self._is_over = True

    def run(self) -> None:
        while not self._is_over:
            asked_at = time.monotonic()
            try:
                messages = self._ask("GET", f"/subscriptions/{SUBSCRIPTION}/messages?{_LEASE}")["messages"]
            except ResponseError:
                time.sleep(_PAUSE_S)
                continue
            if messages:
                self._process_all(messages, asked_at)

    def _process_all(self, messages: list[dict[str, Any]], asked_at: float) -> None:
        try:
            transaction = self._ask("POST", "/transactions", {"timeout": _TIMEOUT})["transaction_id"]
        except ResponseError:
            return
        self._serial += 1
        sources = [_place(message["message_id"]) for message in messages]
        sends = results_of(sources, f"{self._process}.{self._serial}", (QUEUE_RESULTS, QUEUE_LEDGER))
        self._history.note("begin", serial=self._serial, asked_at=asked_at, sources=sources, sends=sends)
        verb = "commit"
        try:
            offsets = self._publish(transaction, sends)
            acks = {"ack_ids": [message["ack_id"] for message in messages]}
            self._insist(f"/subscriptions/{SUBSCRIPTION}/ack?transaction={transaction}", acks)
        except ResponseError:
            verb, offsets = "abort", {}
        if self._chance.random() < _ABORTS:
            verb = "abort"
        if verb == "commit":
            self._history.note("ask", serial=self._serial)
        self._end(transaction, verb, offsets)

    def _publish(self, transaction: str, sends: list[tuple[str, int, str, int]]) -> dict[str, int]:
        """Return the offset of each value. Raises ResponseError."""
        offsets: dict[str, int] = {}
        for topic in (QUEUE_RESULTS, QUEUE_LEDGER):
            mine = [(partition, value) for name, partition, value, _ in sends if name == topic]
            body = {"messages": [{"payload": value, "partition": partition} for partition, value in mine]}
            path = f"/topics/{topic}/messages:batch?transaction={transaction}"
            results = self._ask("POST", path, body)["results"]
            if any(result["status"] != "ok" for result in results):
                raise ResponseError("message")
            offsets |= {value: result["offset"] for (_, value), result in zip(mine, results, strict=True)}
            if self._chance.random() < 0.02:
                time.sleep(self._chance.uniform(0.0, 0.2))
        return offsets

    def _end(self, transaction: str, verb: str, offsets: dict[str, int]) -> None:
        """Commit or abort, and note the outcome if it becomes known."""
        try:
            self._insist(f"/transactions/{transaction}/{verb}", {})
        except ResponseError as refused:
            if refused.kind == "transaction_aborted":
                self._history.note("told", serial=self._serial, outcome="aborted", offsets={})
            return
        outcome = {"commit": "committed", "abort": "aborted"}[verb]
        self._history.note("told", serial=self._serial, outcome=outcome, offsets=offsets)

    def _insist(self, path: str, body: object) -> None:
        """Repeat a request that may be repeated, while there is no answer to it. Raises ResponseError."""
        ends = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._ask("POST", path, body)
            except ResponseError as refused:
                if 0 < refused.status < 500 or time.monotonic() > ends:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the document of a response. Raises ResponseError."""
        with closing(HTTPConnection(self._chance.choice(self._addresses), timeout=20)) as connection:
            try:
                connection.request(method, path, None if body is None else msgspec.json.encode(body))
                response = connection.getresponse()
                content = response.read()
            except (OSError, HTTPException) as failure:
                raise ResponseError("no_answer") from failure
        document = msgspec.json.decode(content)
        if response.status >= 300:
            raise ResponseError(document["kind"], response.status)
        return document


def _place(message_id: str) -> tuple[int, int]:
    partition, _, offset = message_id.partition("-")
    return int(partition), int(offset)


def main(arguments: list[str]) -> int:
    addresses, worker, start, path = arguments
    member = QueueWorker(addresses.split(","), f"{worker}.{start}", HistoryFile(Path(path)))
    signal.signal(signal.SIGTERM, member.stop)
    member.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
