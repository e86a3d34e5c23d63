"""Users log in to SQS by signatures: boto3 signs, the broker verifies, and ACLs decide."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from requests import get, post

from conveyor.testing import Broker
from tests.clients.sqs.sqs_requests import receive, refusal_of

ROOT, ALICE = ("AKIAROOT0001", "root-secret-of-at-least-20"), ("AKIAALICE001", "alice-secret-of-at-least-20")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose HTTP clients log in, and whose users have an access key each."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# keys\n{' '.join(ROOT)} root\n\n{' '.join(ALICE)} alice\n")
    settings = {
        "access.enabled": True,
        "access.super_users": "User:root",
        "network.http_users": True,
        "sqs.keys_file": str(keys),
    }
    with Broker(memory=True, settings=settings) as running:
        yield running


def connect(broker: Broker, key: tuple[str, str]) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=broker.http_url,
        region_name="eu-central-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture(scope="module")
def root(guarded: Broker) -> Iterator[Any]:
    client = connect(guarded, ROOT)
    yield client
    client.close()


@pytest.fixture(scope="module")
def url(root: Any) -> str:
    made: str = root.create_queue(QueueName="guarded")["QueueUrl"]
    return made


def test_signed_requests_are_the_users(root: Any, url: str) -> None:
    large = "x" * 200_000
    for body in ("é", large):
        root.send_message(QueueUrl=url, MessageBody=body)
        [message] = receive(root, url, WaitTimeSeconds=1, MessageSystemAttributeNames=["SenderId"])
        assert message["Body"] == body
        assert message["Attributes"]["SenderId"] == "User:root"
        root.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_other_user_has_no_right(guarded: Broker, url: str) -> None:
    alice = connect(guarded, ALICE)
    refused = refusal_of(alice.send_message, QueueUrl=url, MessageBody="x")
    assert refused == ("AccessDenied", "User:alice has no right to Write Topic", 403)
    assert "QueueUrls" not in alice.list_queues()
    alice.close()


@pytest.mark.parametrize(
    ("key", "code"),
    [((ROOT[0], ALICE[1]), "SignatureDoesNotMatch"), (("AKIANOBODY01", ROOT[1]), "InvalidClientTokenId")],
)
def test_wrong_keys_are_refused(guarded: Broker, url: str, key: tuple[str, str], code: str, root: Any) -> None:
    client = connect(guarded, key)
    refused = refusal_of(client.send_message, QueueUrl=url, MessageBody="never")
    assert (refused.code, refused.status) == (code, 403)
    assert receive(root, url) == []
    client.close()


def test_requests_without_a_signature_are_refused(guarded: Broker) -> None:
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    answer = post(guarded.http_url, b"{}", headers={**target, "x-amzn-query-mode": "true"}, timeout=60)
    assert answer.status_code == 403
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    answer = get(guarded.http_url, {"Action": "ListQueues"}, timeout=60)
    assert "<Code>MissingAuthenticationToken</Code>" in answer.text


def test_signature_is_no_login_to_rest(guarded: Broker) -> None:
    header = f"AWS4-HMAC-SHA256 Credential={ROOT[0]}/20260101/r/sqs/aws4_request, SignedHeaders=host, Signature=0"
    assert get(f"{guarded.http_url}/topics", headers={"Authorization": header}, timeout=60).status_code == 401
    query = f"?X-Amz-Credential={ROOT[0]}/20260101/r/sqs/aws4_request"
    assert get(f"{guarded.http_url}/topics{query}", timeout=60).status_code == 401


def test_changed_body_is_refused(guarded: Broker, root: Any, url: str) -> None:
    """The signature of one body, with another one."""
    taken: list[AWSRequest] = []
    root.meta.events.register_first("before-send.sqs.ListQueues", lambda request, **_: taken.append(request))
    root.list_queues()
    root.meta.events.unregister("before-send.sqs.ListQueues")
    headers = {name: value for name, value in taken[0].headers.items() if name != "Content-Length"}
    assert post(guarded.http_url, taken[0].body, headers=headers, timeout=60).status_code == 200
    changed = post(guarded.http_url, b'{"QueueNamePrefix":"x"}', headers=headers, timeout=60)
    assert changed.status_code == 403
    assert "SignatureDoesNotMatch" in changed.headers["x-amzn-query-error"]


def test_url_may_be_signed(guarded: Broker, url: str) -> None:
    request = AWSRequest("GET", f"{url}?Action=GetQueueUrl&QueueName=guarded")
    SigV4QueryAuth(Credentials(*ROOT), "sqs", "eu-central-1", expires=60).add_auth(request)
    answer = get(request.prepare().url, timeout=60)
    assert (answer.status_code, f"<QueueUrl>{url}</QueueUrl>" in answer.text) == (200, True)
    assert get(answer.url.replace("=guarded&", "=other&"), timeout=60).status_code == 403
