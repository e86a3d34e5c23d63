"""One worker of a queue: it leases messages over REST, and publishes their results and acknowledges them in one
request. It repeats a request whose answer is lost, and sometimes others.

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

_PATIENCE_S = 60.0
_LEASE = "max_messages=20&wait=300ms&visibility=8s"
_ABORTS = 0.08
_WITHOUT_ID = 0.1
_REPEATS = 0.1
_LOST_ANSWERS = 0.03
_NO_PARTITION = 99_999
_PAUSE_S = 0.05


class ResponseError(Exception):
    """A response that is no success. is_final: whether the request was not executed, and the same one will not be."""

    def __init__(self, kind: str, *, is_final: bool = False) -> None:
        super().__init__(kind)
        self.is_final = is_final


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
        self._serial += 1
        name = f"{self._process}.{self._serial}"
        sources = [_place(message["message_id"]) for message in messages]
        sends = results_of(sources, name, (QUEUE_RESULTS, QUEUE_LEDGER))
        body: dict[str, Any] = {
            "id": None if self._chance.random() < _WITHOUT_ID else name,
            "messages": [{"topic": topic, "payload": value, "partition": at} for topic, at, value, _ in sends],
            "acknowledge": [{"subscription": SUBSCRIPTION, "ack_ids": [message["ack_id"] for message in messages]}],
        }
        if self._chance.random() < _ABORTS:
            body["messages"].append({"topic": QUEUE_RESULTS, "payload": "refused", "partition": _NO_PARTITION})
        self._history.note("begin", serial=self._serial, asked_at=asked_at, sources=sources, sends=sends)
        self._history.note("ask", serial=self._serial)
        try:
            results = self._execute(body)
        except ResponseError as refused:
            if refused.is_final:
                self._history.note("told", serial=self._serial, outcome="aborted", offsets={})
            return
        offsets = {value: result["offset"] for (_, _, value, _), result in zip(sends, results, strict=True)}
        self._history.note("told", serial=self._serial, outcome="committed", offsets=offsets)
        if body["id"] is not None and self._chance.random() < _REPEATS:
            self._repeat(body, results)

    def _repeat(self, body: dict[str, Any], results: list[dict[str, Any]]) -> None:
        """Execute a request again, which must have the same results."""
        try:
            again = self._execute(body)
        except ResponseError as refused:
            if refused.is_final:
                self._history.note("contradiction", reason=f"{body['id']} was executed and is refused: {refused}")
        else:
            if again != results:
                self._history.note("contradiction", reason=f"{body['id']}: {results} became {again}")

    def _execute(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Execute a request, and repeat it while its outcome is open, if it has an id. Raises ResponseError."""
        ends = time.monotonic() + _PATIENCE_S
        while True:
            try:
                results: list[dict[str, Any]] = self._ask("POST", "/transactions", body)["results"]
            except ResponseError as refused:
                if refused.is_final or body["id"] is None or time.monotonic() > ends:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return results

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the document of a response. Raises ResponseError."""
        with closing(HTTPConnection(self._chance.choice(self._addresses), timeout=20)) as connection:
            try:
                connection.request(method, path, None if body is None else msgspec.json.encode(body))
                if body is not None and self._chance.random() < _LOST_ANSWERS:
                    raise ResponseError("no answer")
                response = connection.getresponse()
                content = response.read()
            except (OSError, HTTPException) as failure:
                raise ResponseError("no answer") from failure
        document = msgspec.json.decode(content)
        if response.status >= 300:
            is_final = response.status < 500 and not document["retriable"]
            raise ResponseError(document["kind"], is_final=is_final)
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
