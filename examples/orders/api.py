"""All that it takes to talk to a broker: the standard library's HTTP client, and JSON."""

import json
import os
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

BROKER = os.environ.get("ORDERS_API", "http://127.0.0.1:8080")


def ask(method: str, path: str, body: object = None) -> Any:
    """One request to the broker; returns the JSON of its answer. If it says no, the program ends with its reason."""
    sent = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(BROKER + path, sent, method=method)) as response:
            return json.load(response)
    except HTTPError as refusal:
        raise SystemExit(f"{method} {path}: {json.load(refusal)['detail']}") from None
    except URLError as error:
        raise SystemExit(f"no broker answers at {BROKER} ({error.reason}): start one with `conveyor serve`") from None
