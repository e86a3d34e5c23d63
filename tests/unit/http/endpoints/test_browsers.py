"""Without tokens, the broker refuses pages of other sites by their origin and by the requested host name."""

import pytest

from conveyor.http.endpoints.browsers import refusal as refusal_of
from conveyor.http.engine.http_request import Request

HERE = {"Host": "127.0.0.1:8080"}
BROWSER = {"Sec-Fetch-Site": "same-origin"}


def refusal(
    headers: dict[str, str], *, is_public: bool, is_guarded: bool = False, is_listed: bool = False
) -> str | None:
    fields = {name.lower().encode(): value.encode() for name, value in headers.items()}
    request = Request("GET", b"/", fields, is_http_11=True)
    return refusal_of(request, is_public=is_public, is_guarded=is_guarded, is_listed=is_listed)


@pytest.mark.parametrize(
    "headers",
    [HERE, HERE | {"Origin": "http://127.0.0.1:8080"}, {"Host": "conveyor:8080"}, {"Host": "evil.example"}, {}],
)
def test_own_pages_and_other_clients_are_served(headers: dict[str, str]) -> None:
    assert refusal(headers, is_public=False) is None


@pytest.mark.parametrize("origin", ["https://example.org", "null", "http://127.0.0.1:8081", ""])
def test_page_of_another_site_is_refused(origin: str) -> None:
    assert refusal(HERE | {"Origin": origin}, is_public=True) == (
        f"pages from {origin} may not use this broker without a token (--token-file), unless"
        " network.http_cors_origins lists their origin"
    )


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "192.168.1.5:8080", "[::1]:8080", "[::1]", "localhost", "LOCALHOST:8080", "broker.localhost:8080"],
)
def test_browser_may_use_a_host_that_no_site_can_own(host: str) -> None:
    assert refusal(BROWSER | {"Host": host}, is_public=False) is None
    assert refusal({"Host": host, "Origin": f"http://{host}"}, is_public=False) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8080", "evil.example", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", ""],
)
def test_browser_may_not_use_a_name_that_a_site_may_own(host: str) -> None:
    for headers in (BROWSER | {"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        refused = refusal(headers, is_public=True)
        assert refused is not None
        assert f"'{host}'" in refused
        assert "--token-file" in refused


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_site_may_only_link_to_public_endpoints(site: str) -> None:
    """Requests for an image, a link or a frame have no Origin."""
    assert refusal(HERE | {"Sec-Fetch-Site": site}, is_public=True) is None
    assert refusal(HERE | {"Sec-Fetch-Site": site}, is_public=False) is not None


def test_browser_may_use_any_name_of_a_broker_that_asks_who_it_is() -> None:
    """It logs in by itself only where its user did so before, and not at a name that a site has pointed here."""
    named = {"Host": "kafka.example:8443"}
    assert refusal(BROWSER | named, is_public=False, is_guarded=True) is None
    assert refusal(named | {"Origin": "https://kafka.example:8443"}, is_public=False, is_guarded=True) is None
    assert refusal(named | {"Origin": "https://evil.example"}, is_public=False, is_guarded=True) is not None
    assert refusal(named | {"Sec-Fetch-Site": "cross-site"}, is_public=False, is_guarded=True) is not None


def test_page_of_a_listed_origin_may_use_any_host() -> None:
    for host in ("127.0.0.1:8080", "queues.example:8080"):
        page = {"Host": host, "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        assert refusal(page, is_public=False, is_listed=True) is None
        assert refusal(page, is_public=False, is_listed=False) is not None
