"""HTTP clients log in as the users whom their bearer tokens name, beside those with a password or a token of a file."""

import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.testing import Broker
from tests.clients.rest_client import Answer, Rest
from tests.identity_provider import AUDIENCE, key_set, signing_key, token

CHALLENGE = 'Bearer realm="conveyor", Basic realm="conveyor", charset="UTF-8"'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the settings of a broker on which the user alice may do everything, and others nothing."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "keys.json").write_bytes(key_set(signing_key("ES256")))
    (folder / "tokens").write_text("a-token\n")
    return {
        "network.http_users": True,
        "network.token_file": str(folder / "tokens"),
        "sasl.jwks_file": str(folder / "keys.json"),
        "sasl.oauth_audience": AUDIENCE,
        "sasl.oauth_issuer": "*",
        "access.enabled": True,
        "access.super_users": "User:alice",
    }


@pytest.fixture(scope="module")
def guarded(settings: dict[str, object]) -> Iterator[Broker]:
    with Broker(memory=True, settings=settings) as broker:
        yield broker


@pytest.fixture
def rest(guarded: Broker) -> Iterator[Rest]:
    client = Rest(guarded)
    yield client
    client.close()


def bearer(kid: str = "one", **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(int(time.time() * 1000), 'ES256', kid, **claims)}"}


def metrics(rest: Rest, headers: dict[str, str]) -> Answer:
    return rest.ask("GET", "/metrics", headers=headers)


def test_user_of_a_token_is_let_in(rest: Rest) -> None:
    alice = bearer()
    for _ in range(3):
        assert metrics(rest, alice).status == 200
    assert rest.ask("POST", "/topics/orders/messages", b"1", headers=alice).status == 201


def test_user_of_a_token_has_only_own_rights(rest: Rest) -> None:
    assert metrics(rest, bearer(sub="bob")).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        bearer(exp=1),
        bearer(aud="another"),
        bearer(sub=None),
        bearer(kid="two"),
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer a.b.c"},
        {"Authorization": "Bearer " + "a" * 8_000},
        {"Authorization": "Basic " + b64encode(b"alice:" + bearer()["Authorization"][7:].encode()).decode()},
        {},
    ],
)
def test_anybody_else_is_refused(rest: Rest, headers: dict[str, str]) -> None:
    answer = metrics(rest, headers)
    assert answer.problem[:2] == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == CHALLENGE


def test_pages_of_other_sites_are_refused(rest: Rest) -> None:
    assert metrics(rest, bearer() | {"Origin": "https://evil.example"}).status == 403


def test_broker_does_not_start_with_keys_that_it_cannot_read(settings: dict[str, object], tmp_path: Path) -> None:
    broken = settings | {"sasl.jwks_file": str(tmp_path / "missing.json")}
    with pytest.raises(SettingsError, match=r"sasl\.jwks_file"), Broker(memory=True, settings=broken):
        pass
