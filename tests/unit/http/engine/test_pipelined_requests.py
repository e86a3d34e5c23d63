"""Pipelined requests of one connection: their order, and how many are served in one turn of the event loop."""

import pytest

from tests.unit.http.engine.test_http_connection import get, post
from tests.unit.http.memory_wire import Client


def test_pipelined_requests_are_answered_in_order_one_after_the_other() -> None:
    client = Client()
    client.send(get("/later/1") + post("/later/2", b"x") + get("/3"))
    assert [target for _, target, _ in client.application.served] == [b"/later/1"]
    client.application.answer()
    assert len(client.application.served) == 1, "who replies does not begin another request"
    client.work()
    assert [target for _, target, _ in client.application.served] == [b"/later/1", b"/later/2"]
    client.answer()
    assert [body for _, body in client.responses()] == [b"GET /later/1 ", b"POST /later/2 x", b"GET /3 "]


def test_many_pipelined_requests_do_not_keep_the_loop() -> None:
    client = Client()
    client.send(get("/a") * 1000)
    assert len(client.application.served) == 16
    client.work()
    assert len(client.application.served) == 1000


@pytest.mark.parametrize(("size", "served"), [(0, 16), (3_000, 16), (5_000, 8), (20_000, 4), (60_000, 2), (200_000, 1)])
def test_few_pipelined_requests_with_large_bodies_are_served_at_once(size: int, served: int) -> None:
    """The application may need 40 ms for a body of 64 KiB."""
    client = Client()
    client.send(post("/a", b"x" * size) * 20)
    assert 1 <= len(client.application.served) <= served
    client.work()
    assert len(client.application.served) == 20
