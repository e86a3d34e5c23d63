"""Pages of listed origins use the REST API as browsers do: a preflight without credentials, then the request."""

from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Answer, Rest

APP, EVIL = "https://app.example", "https://evil.example"
TOKEN = {"Authorization": "Bearer a-token"}
ALLOW_ORIGIN = "Access-Control-Allow-Origin"


@pytest.fixture(scope="module")
def plain() -> Iterator[Broker]:
    """Yield a broker without tokens, which pages of two sites may use."""
    with Broker(memory=True, settings={"network.http_cors_origins": f"{APP},http://localhost:3000"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a broker with users and tokens, which pages of one site may use."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("a-token\n")
    settings = {"network.http_users": True, "network.token_file": str(tokens), "network.http_cors_origins": APP}
    with Broker(memory=True, settings=settings) as broker:
        yield broker


def from_page(broker: Broker, method: str, path: str, origin: str, **headers: str) -> Answer:
    """Ask as a page's script does. headers: with `_` for `-`."""
    rest = Rest(broker)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    body = b"payload" if method == "POST" else None
    try:
        return rest.ask(method, path, body, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site", **sent})
    finally:
        rest.close()


def preflight(broker: Broker, path: str, origin: str, method: str) -> Answer:
    return from_page(broker, "OPTIONS", path, origin, Access_Control_Request_Method=method)


def test_page_of_a_listed_origin_publishes_and_reads(plain: Broker) -> None:
    for origin in (APP, "http://localhost:3000"):
        asked = preflight(plain, "/topics/orders/messages", origin, "POST")
        assert (asked.status, asked.body, asked.headers[ALLOW_ORIGIN]) == (204, b"", origin)
        assert asked.headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST"
        assert "Conveyor-Key" in asked.headers["Access-Control-Allow-Headers"].split(", ")
        assert int(asked.headers["Access-Control-Max-Age"]) > 0
        posted = from_page(plain, "POST", "/topics/orders/messages", origin, Conveyor_Key="ada")
        assert (posted.status, posted.headers[ALLOW_ORIGIN], posted.headers["Vary"]) == (201, origin, "Origin")
        assert from_page(plain, "GET", "/topics/orders", origin).status == 200


def test_errors_are_readable_by_the_page(plain: Broker) -> None:
    for method, path, status in (
        ("GET", "/topics/missing", 404),
        ("GET", "/nowhere", 404),
        ("DELETE", "/topics", 405),
        ("GET", "/topics?wrong=1", 400),
        ("OPTIONS", "/topics", 405),  # Not a preflight, as it asks for no method.
    ):
        answer = from_page(plain, method, path, APP)
        assert (answer.status, answer.headers[ALLOW_ORIGIN]) == (status, APP)


@pytest.mark.parametrize("origin", [EVIL, "null", "http://app.example", "https://app.example:8443"])
def test_page_of_any_other_origin_stays_refused(plain: Broker, origin: str) -> None:
    refused = from_page(plain, "GET", "/topics", origin)
    assert refused.problem[:2] == (403, "foreign_origin")
    unanswered = preflight(plain, "/topics/orders/messages", origin, "POST")
    assert unanswered.problem[:2] == (405, "method_not_allowed")
    for answer in (refused, unanswered):
        assert answer.headers["Vary"] == "Origin"
        assert not any(name.startswith("Access-Control") for name in answer.headers)


def test_request_without_an_origin_stays_refused_if_another_site_made_it(plain: Broker) -> None:
    """An image or a link of any site has no Origin."""
    rest = Rest(plain)
    assert rest.ask("GET", "/topics", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert rest.get("/topics").status == 200
    rest.close()


def test_preflight_needs_no_login_but_the_request_does(guarded: Broker) -> None:
    asked = preflight(guarded, "/topics", APP, "POST")
    assert "Authorization" in asked.headers["Access-Control-Allow-Headers"].split(", ")
    assert asked.status == 204
    refused = from_page(guarded, "GET", "/topics", APP)
    assert (refused.problem[:2], refused.headers[ALLOW_ORIGIN]) == ((401, "unauthorized"), APP)
    assert from_page(guarded, "GET", "/topics", APP, **TOKEN).status == 200


def test_token_makes_no_response_readable_for_another_origin(guarded: Broker) -> None:
    answer = from_page(guarded, "GET", "/topics", EVIL, **TOKEN)
    assert answer.status == 200
    assert ALLOW_ORIGIN not in answer.headers
    assert from_page(guarded, "GET", "/topics", EVIL).problem[:2] == (403, "foreign_origin")


def test_by_default_no_preflight_is_answered() -> None:
    with Broker(memory=True) as broker:
        assert preflight(broker, "/topics", APP, "POST").status == 405
        answer = from_page(broker, "GET", "/topics", APP)
        assert answer.problem[:2] == (403, "foreign_origin")
        assert "Vary" not in answer.headers
