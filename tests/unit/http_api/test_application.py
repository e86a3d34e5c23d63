"""The table of endpoints."""

from conveyor.http_api.application import ENDPOINTS


def test_endpoints_are_declared_once() -> None:
    declared = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
    assert len(set(declared)) == len(declared)
