"""Secrets, and what is computed from them, are compared in constant time: `==` would tell strangers how much of a guess
is right. Source: CVE-2021-38153.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import modules, shown, tree

WORDS = {"credential", "credentials", "digest", "hexdigest", "mac", "password", "proof", "secret", "signature", "token"}
WORDS |= {f"{word}s" for word in WORDS}
NO_SECRETS = {"bytes", "url"}
"""A name with one of these is of a size, or of the place of a secret."""
KEYS = {"client_key", "server_key", "stored_key"}

PERMITTED = {
    "conveyor/broker/clients/credentials.py": {
        "self.scram(mechanism, user) == (credential, True)": "both are of this broker's image",
    },
    "conveyor/broker/queues/pushing/push_changes.py": {
        "self._new_secret not in secrets": "as they are stored, and all of this broker's image",
    },
    "conveyor/broker/queues/pushing/pusher.py": {
        "before.secrets != self._target.secrets": "as they are stored, and both of this broker's image",
    },
    "conveyor/broker/transaction_requests/transaction_requests.py": {
        "answer.digest != digest": "of a request, without a secret, by a client that may send it",
    },
    "conveyor/cli/users/user.py": {
        "getpass('Again: ') != secret": "both are typed by one person",
    },
    "conveyor/kafka_api/wire/sasl/scram_exchange.py": {
        "self._lookup(self._user) != (credential, True)": "both are of this broker's image",
    },
    "conveyor/transactions/request_answers.py": {
        "unowned.digest == digest": "of a request, without a secret, by a client that may send it",
    },
    "conveyor/log/producers/message_ids.py": {
        "digest in fresh": "of a message, without a secret",
        "known.digest not in ids": "of a message, without a secret",
    },
}


def test_secrets_are_compared_in_constant_time() -> None:
    found = {
        (shown(path).removeprefix("src/"), ast.unparse(node)) for path in modules("src") for node in comparisons(path)
    }
    permitted = {(path, text) for path, texts in PERMITTED.items() for text in texts}
    assert found == permitted


def comparisons(path: Path) -> Iterator[ast.Compare]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare) and any(map(is_secret, compared(node))):
            yield node


def compared(node: ast.Compare) -> Iterator[ast.expr]:
    """Yield the values that are compared by `==` and `!=`, and those that are looked for among others."""
    for left, operator, right in zip((node.left, *node.comparators), node.ops, node.comparators, strict=False):
        sides = (left, right) if isinstance(operator, ast.Eq | ast.NotEq) else ()
        for side in (left,) if isinstance(operator, ast.In | ast.NotIn) else sides:
            yield from side.elts if isinstance(side, ast.Tuple) else (side,)


def is_secret(value: ast.expr) -> bool:
    if isinstance(value, ast.Call | ast.Subscript):
        return is_secret(value.func if isinstance(value, ast.Call) else value.value)
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    words = set(name.lower().split("_"))
    return name in KEYS or (bool(WORDS & words) and not NO_SECRETS & words)
