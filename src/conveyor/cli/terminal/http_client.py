"""The HTTP client of commands: requests to one address, and errors as one line. `cluster_http` finds the address."""

import json
import sys
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from conveyor.cli.terminal.client_security import client_security
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.kernel.hosts import is_loopback
from pyspark_conveyor.brokers.quota_waits import QuotaWaits

TIMEOUT_S = 60.0

_HINTS = {
    "unknown_schedule": "see 'conveyor schedule list'",
    "unknown_subscription": "see 'conveyor queue list'",
    "unknown_topic": "see 'conveyor topic list'",
}
_UNAUTHORIZED = (
    "the broker wants to know who asks: set CONVEYOR_TOKEN to a bearer token, or give --client-config a file with the"
    " user, who is not sent over http to other machines if the file has TLS or SCRAM"
)


class HttpClient:
    """Sends requests to one broker, each on a connection of its own. Every method raises ClientError.

    A request over a quota of the user has not been executed, so it is sent again when the broker says.

    token: a bearer token, instead of the user of `client_security`. is_known: whether the broker may learn either.
    hint: what a user can do if the address is wrong.
    """

    def __init__(self, http: str, token: str | None, hint: str, *, is_known: bool = True) -> None:
        self.url = http if "://" in http else f"http://{http}"
        self.hint = hint
        parts = _split(self.url)
        if parts is None:
            raise ClientError(f"--http {http}: expected an address such as http://127.0.0.1:8080")
        self._parts = parts
        self._headers = self._authorization(token) if is_known else {}

    def cluster_id(self) -> str:
        """Return the id of the broker's cluster."""
        health = self.get("/healthz")
        if not isinstance(health, dict) or "cluster_id" not in health:
            raise self._is_no_broker()
        return str(health["cluster_id"])

    def get(self, path: str, query: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a GET request. query: parameters that are None are left out."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path, None, timeout_s)

    def post(self, path: str, document: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        return self._ask("POST", path, json.dumps(document or {}).encode(), timeout_s)

    def patch(self, path: str, document: Mapping[str, object]) -> Any:
        return self._ask("PATCH", path, json.dumps(document).encode(), TIMEOUT_S)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None, TIMEOUT_S)

    def _authorization(self, token: str | None) -> dict[str, str]:
        is_private = self._parts.scheme == "https" or is_loopback(self._parts.hostname or "")
        shown = f"Bearer {token}" if token else client_security().authorization(is_private=is_private)
        return {} if shown is None else {"Authorization": shown}

    def _ask(self, method: str, target: str, body: bytes | None, timeout_s: float) -> Any:
        from http.client import HTTPException
        from ssl import SSLError

        waits = QuotaWaits()
        try:
            status, content, retry_after = self._send(method, target, body, timeout_s)
            while status == HTTPStatus.TOO_MANY_REQUESTS and (wait_s := waits.next_s(retry_after)) is not None:
                print(f"over a quota: waiting {wait_s} s", file=sys.stderr)
                time.sleep(wait_s)
                status, content, retry_after = self._send(method, target, body, timeout_s)
        except SSLError as error:
            trust = "name its authority by ssl.ca.location in the file of --client-config"
            raise ClientError(f"the certificate of {self.url} is not accepted: {trust} ({error.reason})") from error
        except TimeoutError as error:
            raise ClientError(f"{self.url} did not answer within {timeout_s:.0f} seconds") from error
        except HTTPException as error:
            raise self._is_no_broker() from error
        except OSError as error:
            raise ClientError(f"no broker answers at {self.url}: {self.hint}") from error
        return self._read(status, content)

    def _send(self, method: str, target: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes, str]:
        """Return the status, the content and the Retry-After, which is empty if there is none."""
        from http.client import HTTPConnection, HTTPSConnection

        connection: HTTPConnection
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=timeout_s, context=client_security().https())
        else:
            connection = HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.request(method, self._parts.path.rstrip("/") + target, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read(), response.getheader("Retry-After", "")
        finally:
            connection.close()

    def _read(self, status: int, content: bytes) -> Any:
        try:
            document = json.loads(content) if content else None
        except ValueError as error:
            raise self._is_no_broker() from error
        if status < 300:
            return document
        if not isinstance(document, dict) or "detail" not in document:
            raise self._is_no_broker()
        raise RefusedError(document["detail"], document.get("kind", ""))

    def _is_no_broker(self) -> ClientError:
        return ClientError(f"{self.url} is not the HTTP address of a broker: {self.hint}")


class RefusedError(ClientError):
    """The broker refused the request. `kind`: the kind in its problem document."""

    def __init__(self, detail: str, kind: str) -> None:
        hint = _HINTS.get(kind)
        super().__init__(_UNAUTHORIZED if kind == "unauthorized" else f"{detail}: {hint}" if hint else detail)
        self.kind = kind


def path_to(*names: str) -> str:
    """Return a path of the API. Names are quoted, so they may contain any character."""
    return "".join(f"/{quote(name, safe='')}" for name in names)


def _split(url: str) -> SplitResult | None:
    """Return the parts of an HTTP address; None if it is not one."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if is_address else None
