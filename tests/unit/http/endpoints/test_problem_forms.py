"""An endpoint of another protocol takes any query, sets its headers, and writes problems in a form of its own."""

import json
from itertools import count

from conveyor.http.endpoints.endpoint import AnyQuery, Endpoint, Raw
from conveyor.http.endpoints.endpoint_application import EndpointApplication
from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.kernel.access.declared_access import NO_ACCESS
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.unit.http.endpoints.test_endpoint_application import Call, Door
from tests.unit.http.memory_wire import Client, until


async def show(call: Call[AnyQuery, None]) -> Raw:
    """Show the query."""
    if "fail" in call.query.values:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, "no such topic")
    shown = json.dumps(dict(call.query.values)).encode()
    return Raw(shown, "text/plain", 202, {"Request-Id": "7"})


def in_own_form(exchange: Exchange, response: Response) -> Response:
    detail = json.loads(response.body)["detail"]
    return Response(418, f"{exchange.request.method}: {detail}".encode(), "text/plain", {"Own": "yes"})


async def answer(target: str, method: str = "GET") -> str:
    endpoint = Endpoint(method="GET", path="/any", needs=NO_ACCESS, function=show, problem_form=in_own_form)
    application = EndpointApplication([endpoint], Door())
    client = Client(service=Service(application, RequestBudget(1 << 20), DateHeader(ManualClock()), 10, count(1)))
    client.send(f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    await until(lambda: bool(client.wire.written))
    return client.take().decode()


async def test_query_is_shown_as_it_was_sent() -> None:
    text = await answer("/any?a=1&b=x%20y&a=2&c")
    assert text.startswith("HTTP/1.1 202 ")
    assert "\r\nRequest-Id: 7\r\n" in text
    assert json.loads(text.partition("\r\n\r\n")[2]) == {"a": ["1", "2"], "b": ["x y"], "c": [""]}


async def test_problem_has_the_endpoints_form() -> None:
    text = await answer("/any?fail=1")
    assert text.startswith("HTTP/1.1 418 ")
    assert "\r\nOwn: yes\r\n" in text
    assert text.endswith("GET: no such topic")


async def test_problem_without_an_endpoint_is_a_document() -> None:
    assert '"kind":"not_found"' in await answer("/other")
    assert '"kind":"method_not_allowed"' in await answer("/any", "PUT")
