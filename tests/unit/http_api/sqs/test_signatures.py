"""Signature Version 4.

tests/vectors/sqs/signed_requests.json has requests of AWS's own suite, as their signers send them (the
aws-signing-test-suite of aws-c-auth, Apache 2.0).
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from conveyor.http_api.sqs.signing.canonical_request import SignedRequest
from conveyor.http_api.sqs.signing.signatures import is_signed, verify_signature
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sqs" / "signed_requests.json").read_text())
SECRETS = {"AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
SIGNED_AT_MS = 1_440_938_160_000
MINUTE_MS = 60_000


def request_of(name: str) -> SignedRequest:
    vector = VECTORS[name]
    line = re.fullmatch(r"(\S+) (.*) HTTP/1.1", vector["request"])
    assert line is not None
    pairs = (header.partition(":") for header in vector["headers"])
    headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
    return SignedRequest(line[1], line[2], headers, vector["body"].encode())


def verify(request: SignedRequest, now_ms: int = SIGNED_AT_MS) -> str:
    return verify_signature(request, SECRETS.get, now_ms, "service")


def refusal(request: SignedRequest, now_ms: int = SIGNED_AT_MS) -> SqsError:
    with pytest.raises(SqsError) as caught:
        verify(request, now_ms)
    return caught.value


def with_header(request: SignedRequest, name: str, value: str) -> SignedRequest:
    others = tuple(pair for pair in request.headers if pair[0] != name)
    return replace(request, headers=(*others, (name, value)))


def with_authorization(old: str, new: str) -> SignedRequest:
    request = request_of("get-vanilla")
    header = request.header("authorization")
    assert header is not None
    assert old in header
    return with_header(request, "authorization", header.replace(old, new))


@pytest.mark.parametrize("name", VECTORS)
def test_requests_of_aws_are_valid(name: str) -> None:
    request = request_of(name)
    assert is_signed(request)
    assert verify(request) == "AKIDEXAMPLE"


@pytest.mark.parametrize("name", VECTORS)
def test_changed_requests_are_refused(name: str) -> None:
    request = request_of(name)
    changed = [
        replace(request, body=request.body + b"x"),
        replace(request, method="PUT"),
        replace(request, target=request.target + ("&" if "?" in request.target else "?") + "x=1"),
        replace(request, target="/other" + request.target[1:]),
        with_header(request, "host", "example.org"),
    ]
    for other in changed:
        assert refusal(other).sqs_kind is SqsErrorKind.SIGNATURE_DOES_NOT_MATCH
    assert verify(with_header(request, "x-unsigned", "1")) == "AKIDEXAMPLE"


def test_request_without_a_signature() -> None:
    request = SignedRequest("POST", "/", (("host", "x"),), b"")
    assert not is_signed(request)
    assert refusal(request).sqs_kind is SqsErrorKind.MISSING_AUTHENTICATION_TOKEN


def test_unknown_key() -> None:
    error = refusal(with_authorization("AKIDEXAMPLE", "AKIDOTHER"))
    assert error.sqs_kind is SqsErrorKind.INVALID_CLIENT_TOKEN_ID
    assert error.message == "The security token included in the request is invalid."


def test_signature_is_valid_for_a_quarter_of_an_hour() -> None:
    request = request_of("get-vanilla")
    for minutes in (-15, 15):
        verify(request, SIGNED_AT_MS + minutes * MINUTE_MS)
    late = refusal(request, SIGNED_AT_MS + 16 * MINUTE_MS)
    assert late.sqs_kind is SqsErrorKind.SIGNATURE_DOES_NOT_MATCH
    assert late.message == (
        "Signature expired: 20150830T123600Z is now earlier than 20150830T123700Z (20150830T125200Z - 15 min.)"
    )
    early = refusal(request, SIGNED_AT_MS - 16 * MINUTE_MS)
    assert early.message == (
        "Signature not yet current: 20150830T123600Z is still later than 20150830T123500Z (20150830T122000Z + 15 min.)"
    )


def test_presigned_request_is_valid_for_as_long_as_it_says() -> None:
    request = request_of("get-vanilla-query (presigned)")
    verify(request, SIGNED_AT_MS + 60 * MINUTE_MS)
    assert refusal(request, SIGNED_AT_MS + 61 * MINUTE_MS).sqs_kind is SqsErrorKind.REQUEST_EXPIRED
    assert refusal(request, SIGNED_AT_MS - 16 * MINUTE_MS).sqs_kind is SqsErrorKind.SIGNATURE_DOES_NOT_MATCH


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "x", "", "9" * 5_000])
def test_presigned_request_says_a_permitted_time(expires: str) -> None:
    request = request_of("get-vanilla-query (presigned)")
    changed = replace(request, target=request.target.replace("Expires=3600", f"Expires={expires}"))
    assert refusal(changed).sqs_kind is SqsErrorKind.INCOMPLETE_SIGNATURE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
        ("AWS4-HMAC-SHA256", "Bearer"),
        ("Credential=", "Other="),
        ("SignedHeaders=", "Other="),
        ("Signature=", "Other="),
        ("AKIDEXAMPLE/20150830/", ""),
        ("host;x-amz-date", "x-amz-date;host"),
        ("host;x-amz-date", "host;host;x-amz-date"),
        ("host;x-amz-date", "host;" + ";".join(f"i{number:03}" for number in range(100))),
    ],
)
def test_incomplete_signatures(old: str, new: str) -> None:
    assert refusal(with_authorization(old, new)).sqs_kind is SqsErrorKind.INCOMPLETE_SIGNATURE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/service/", "/s3/"),
        ("aws4_request", "aws5_request"),
        ("/20150830/", "/20150831/"),
        ("host;x-amz-date", "x-amz-date"),
        ("host;x-amz-date", "absent;host;x-amz-date"),
        ("5fa00fa3", "5fa00fa4"),
        ("5fa00fa3", "\udcff"),
    ],
)
def test_signatures_that_do_not_match(old: str, new: str) -> None:
    assert refusal(with_authorization(old, new)).sqs_kind is SqsErrorKind.SIGNATURE_DOES_NOT_MATCH


@pytest.mark.parametrize(
    "time", ["", "x", "20150830T126000Z", "20151330T123600Z", "2015-08-30T12:36:00Z", "٢0150830T123600Z"]
)
def test_time_has_the_basic_format(time: str) -> None:
    changed = with_header(request_of("get-vanilla"), "x-amz-date", time)
    assert refusal(changed).sqs_kind is SqsErrorKind.INCOMPLETE_SIGNATURE


def test_operation_has_to_be_signed() -> None:
    changed = with_header(request_of("get-vanilla"), "x-amz-target", "AmazonSQS.PurgeQueue")
    assert "'x-amz-target' must be a header of the request, and signed." in refusal(changed).message
