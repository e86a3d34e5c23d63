"""openapi.json is derived from the endpoints, and the HTML page from openapi.json."""

import re
from typing import Any

import pytest

from conveyor.http.endpoints.page import render_page
from conveyor.http_api.application import ENDPOINTS
from conveyor.http_api.ops.description import rest_document

DOCUMENT = rest_document(ENDPOINTS)
OPERATIONS = {f"{endpoint.method} {endpoint.path}": endpoint for endpoint in ENDPOINTS}


def operation(name: str) -> dict[str, Any]:
    method, path = name.split()
    found: dict[str, Any] = DOCUMENT["paths"][path][method.lower()]
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_has_a_summary(name: str) -> None:
    described = operation(name)
    assert re.fullmatch(r"[A-Z].*\.", described["summary"])
    assert str(OPERATIONS[name].status) in described["responses"]
    in_path = [parameter["name"] for parameter in described["parameters"] if parameter["in"] == "path"]
    assert in_path == re.findall(r"{(\w+)}", name)


def test_operation_has_an_id_of_its_own() -> None:
    ids = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids) == len(ENDPOINTS)


def test_reference_leads_to_a_schema() -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)))
    assert names <= DOCUMENT["components"]["schemas"].keys()
    assert {"Problem", "LeaseDocument", "NewTopic"} <= names


def test_rule_of_a_body_stands_with_its_schema() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    ways = [{"required": [name]} for name in ("ack_id", "message_id", "ack_ids", "message_ids")]
    assert schemas["Ack"]["oneOf"] == schemas["NewAcknowledgement"]["oneOf"] == ways
    assert operation("POST /subscriptions/{subscription}/ack")["requestBody"]["required"]


def test_query_is_listed_as_parameters() -> None:
    parameters = {
        parameter["name"]: parameter
        for parameter in operation("GET /subscriptions/{subscription}/messages")["parameters"]
    }
    assert parameters.keys() == {"subscription", "max_messages", "wait", "visibility", "client_id"}
    assert parameters["max_messages"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1}
    assert parameters["wait"]["schema"]["pattern"] == "^[0-9]{1,20}(ms|s|m|h)$"
    assert not [name for name in DOCUMENT["components"]["schemas"] if name.endswith("Query")]


def test_failures_are_problem_documents() -> None:
    responses = operation("POST /subscriptions/{subscription}/ack")["responses"]
    assert responses.keys() == {"200", "400", "401", "403", "404", "409", "413", "415", "429", "503", "504"}
    assert responses["409"]["content"].keys() == {"application/problem+json"}


def test_seek_may_be_out_of_range() -> None:
    assert "416" in operation("POST /subscriptions/{subscription}/seek")["responses"]


def test_post_that_needs_no_body_takes_an_empty_one() -> None:
    body = operation("POST /subscriptions/{subscription}/purge")["requestBody"]
    assert body == {
        "required": False,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NoBody"}}},
    }
    assert DOCUMENT["components"]["schemas"]["NoBody"]["additionalProperties"] is False
    assert "requestBody" not in operation("GET /subscriptions/{subscription}/peek")


def test_page_links_every_schema_that_it_names() -> None:
    page = render_page(DOCUMENT)
    assert set(re.findall(r'href="#(\w+)"', page)) <= set(re.findall(r'<details id="(\w+)"', page))


def test_page_escapes_text() -> None:
    document = {**DOCUMENT, "info": {"title": "<b>", "version": "&", "description": "<script>"}}
    page = render_page(document)
    assert "<h1>&lt;b&gt; &amp;</h1>" in page
    assert "<script>" not in page
