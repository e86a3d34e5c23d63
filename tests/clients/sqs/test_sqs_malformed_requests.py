"""Random and malformed requests in both protocols: no answer is a 5xx, and the broker goes on."""

import http.client
import json
import random
from typing import Any
from urllib.parse import urlencode

import pytest

from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS
from conveyor.testing import Broker

COUNT = 300
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 64, 1e308, "", "x", "\x00", "é" * 300, "a" * 70_000, [], {}, [1, None], {"a": 1},
    "http://h/000000000000/attacked", "attacked", "All", "arn:aws:sqs:r:0:attacked", {"Size": "1"}, [{"Id": "a"}],
    {"RedrivePolicy": "{}"}, {"n": {"DataType": "Number", "StringValue": "9" * 400}},
)  # fmt: skip
MEMBERS = (
    "QueueUrl", "QueueName", "Attributes", "AttributeNames", "tags", "Tags", "TagKeys", "MessageBody", "DelaySeconds",
    "MessageAttributes", "MessageGroupId", "MessageDeduplicationId", "Entries", "ReceiptHandle", "VisibilityTimeout",
    "MaxNumberOfMessages", "MaxResults", "NextToken", "QueueNamePrefix", "SourceArn",
)  # fmt: skip
FORMS = ("Attribute.1.Name", "Attribute.999999999.Value", "Tag.0.Key", "a.b.c", "AttributeName.1", "Entries.1", ".", "")


@pytest.fixture
def connection(broker: Broker) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=60)
    body = json.dumps({"QueueName": "attacked"})
    connection.request("POST", "/", body, {"X-Amz-Target": "AmazonSQS.CreateQueue"})
    assert connection.getresponse().read()
    return connection


def asked(chance: random.Random) -> tuple[str, str, Any, dict[str, str]]:
    """Return a request: method, target, body and headers."""
    operation = chance.choice([*OPERATIONS, "None", ""])
    path = chance.choice(["/", "/000000000000/attacked", "/000000000000/%ff", "/000000000000/none"])
    members = {name: chance.choice(VALUES) for name in chance.sample(MEMBERS, chance.randrange(6))}
    if chance.random() < 0.5:
        members.setdefault("QueueUrl", "http://h/000000000000/attacked")
    if chance.random() < 0.5:
        body = json.dumps(members).encode() if chance.random() < 0.9 else b"[" * 50_000
        return "POST", path, body, {"X-Amz-Target": f"AmazonSQS.{operation}"}
    fields = {**members, **{name: chance.choice(VALUES) for name in chance.sample(FORMS, 3)}}
    form = urlencode({"Action": operation, **{name: str(value)[:2000] for name, value in fields.items()}})
    if chance.random() < 0.3:
        return "GET", f"{path}?{form[:8000]}", None, {}
    return "POST", path, form, {"Content-Type": "application/x-www-form-urlencoded"}


def test_no_sqs_request_stops_a_broker(connection: http.client.HTTPConnection) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(COUNT):
        method, target, body, headers = asked(chance)
        if "DeleteQueue" in f"{headers}{body!r}{target}":
            continue
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 500, f"seed {seed}: {method} {target} {headers} {body!r:.300}: {content!r:.300}"
    connection.request("GET", "/readyz")
    assert connection.getresponse().read().startswith(b'{"status":"ready"')
    connection.close()


def test_errors_before_an_operation_have_the_form_of_the_protocol(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/", b"x", {"X-Amz-Target": "AmazonSQS.ListQueues", "Origin": "http://evil.example"})
    answer = connection.getresponse()
    assert json.loads(answer.read())["__type"] == "com.amazon.coral.service#AccessDeniedException"
    assert answer.headers["x-amzn-query-error"] == "AccessDenied;Sender"
    assert answer.headers["x-amzn-RequestId"]
    connection.request("GET", "/?Action=ListQueues", headers={"Origin": "http://evil.example"})
    answer = connection.getresponse()
    assert answer.status == 403
    assert b"<Code>AccessDenied</Code>" in answer.read()
    connection.close()


def test_paths_of_rest_answer_as_before(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/none", b"{}", {"X-Amz-Target": "AmazonSQS.ListQueues"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["kind"]) == (404, "not_found")
    connection.close()
