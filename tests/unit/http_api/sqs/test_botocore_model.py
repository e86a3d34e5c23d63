"""Operations, members and errors are those of AWS's service model in botocore, whose signatures hold."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape

from conveyor.http_api.sqs.protocols.member_plan import (
    BlobMember,
    ListMember,
    MapMember,
    MemberKind,
    NumberMember,
    StructMember,
    TextMember,
    plan_of,
)
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS
from conveyor.http_api.sqs.signing.canonical_request import SignedRequest
from conveyor.http_api.sqs.signing.signatures import verify_signature
from conveyor.http_api.sqs.sqs_errors import SQS_ERRORS, SqsError, SqsErrorKind

MODEL = ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")
KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
OF_KEY_MANAGEMENT = "Kms"
SCALARS: dict[str, type[MemberKind]] = {
    "string": TextMember,
    "blob": BlobMember,
    "integer": NumberMember,
    "long": NumberMember,
    "boolean": NumberMember,
}


def differences(kind: MemberKind, shape: Shape, where: str) -> list[str]:
    """Return the places where a plan of ours is not as AWS's model has it."""
    if isinstance(kind, StructMember) and isinstance(shape, StructureShape):
        ours = {member.wire_name: member.kind for member in kind.members}
        if ours.keys() != shape.members.keys():
            return [f"{where}: {sorted(ours.keys() ^ shape.members.keys())}"]
        return [
            text for name, inner in ours.items() for text in differences(inner, shape.members[name], f"{where}.{name}")
        ]
    if isinstance(kind, ListMember) and isinstance(shape, ListShape):
        return differences(kind.item, shape.member, f"{where}[]")
    if isinstance(kind, MapMember) and isinstance(shape, MapShape):
        return differences(kind.value, shape.value, f"{where}{{}}")
    return [] if isinstance(kind, SCALARS.get(shape.type_name, type(None))) else [f"{where}: {shape.type_name}"]


def test_operations_are_those_of_the_model() -> None:
    assert set(OPERATIONS) == set(MODEL.operation_names)


@pytest.mark.parametrize("name", OPERATIONS)
def test_members_are_those_of_the_model(name: str) -> None:
    operation, model = OPERATIONS[name], MODEL.operation_model(name)
    assert differences(plan_of(operation.request), model.input_shape, name) == []
    assert (operation.result is None) == (model.output_shape is None)
    if operation.result is not None:
        assert differences(plan_of(operation.result), model.output_shape, name) == []


def test_errors_of_the_model_have_codes() -> None:
    known = {codes.json_type.partition("#")[2] for codes in SQS_ERRORS.values()}
    names = {shape.name for shape in MODEL.error_shapes}
    assert {name for name in names if not name.startswith(OF_KEY_MANAGEMENT)} <= known


def signed(auth: Any, method: str, url: str, body: bytes, headers: dict[str, str]) -> SignedRequest:
    """Return a request as botocore signs it, and when: its time is that of this machine."""
    request = AWSRequest(method=method, url=url, data=body, headers=headers)
    auth.add_auth(request)
    parts = urlsplit(request.url)
    pairs = [("host", parts.netloc), *((name.lower(), value) for name, value in request.headers.items())]
    return SignedRequest(method, f"{parts.path or '/'}?{parts.query}".rstrip("?"), tuple(pairs), body)


def test_request_of_botocore_is_valid() -> None:
    auth = SigV4Auth(Credentials(KEY_ID, SECRET, "session"), "sqs", "eu-central-1")
    headers = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
    request = signed(auth, "POST", "http://127.0.0.1:8080/", b'{"QueueUrl": "u"}', headers)
    now_ms = time_of(request.header("x-amz-date"))
    assert verify_signature(request, {KEY_ID: SECRET}.get, now_ms) == KEY_ID
    with pytest.raises(SqsError) as caught:
        verify_signature(replace(request, body=b"{}"), {KEY_ID: SECRET}.get, now_ms)
    assert caught.value.sqs_kind is SqsErrorKind.SIGNATURE_DOES_NOT_MATCH


def test_presigned_request_of_botocore_is_valid() -> None:
    auth = SigV4QueryAuth(Credentials(KEY_ID, SECRET, "a+/="), "sqs", "eu-central-1", expires=60)
    url = "http://127.0.0.1:8080/000000000000/orders?Action=SendMessage&MessageBody=two%20books%2B%2F%3D~"
    request = signed(auth, "GET", url, b"", {})
    time = next(value for name, value in request.parameters if name == "X-Amz-Date")
    assert verify_signature(request, {KEY_ID: SECRET}.get, time_of(time)) == KEY_ID


def time_of(text: str | None) -> int:
    assert text is not None
    return int(datetime.strptime(text, "%Y%m%dT%H%M%S%z").timestamp() * 1000)
