"""Whatever a client sends, a codec or the check of a signature answers with an error of SQS, or reads the request."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from conveyor.http_api.sqs.protocols.aws_json import AwsJson, read_json
from conveyor.http_api.sqs.protocols.aws_query import AwsQuery, read_query
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS
from conveyor.http_api.sqs.signing.canonical_request import SignedRequest
from conveyor.http_api.sqs.signing.signatures import is_signed, verify_signature
from conveyor.http_api.sqs.sqs_errors import SqsError

NAMES = [
    "QueueUrl",
    "Entries",
    "Attributes",
    "Attribute",
    "MessageAttribute",
    "SendMessageBatchRequestEntry",
    "Tag",
    "MaxResults",
    "Id",
    "Name",
    "Key",
    "Value",
    "StringListValue",
    "1",
    "0",
    "2000000000",
    "",
]
VALUES = st.sampled_from(["", "1", "-1", "x", "%41", "%", "%ff", "+", "null"]) | st.text(max_size=5)
FIELDS = st.tuples(st.lists(st.sampled_from(NAMES), max_size=9).map(".".join), VALUES)
ACTIONS = st.sampled_from([*OPERATIONS, "Unknown"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
HEADER_VALUES = st.sampled_from(
    [
        "AWS4-HMAC-SHA256 Credential=k/20150830/r/sqs/aws4_request, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=k/20150830/r/sqs/aws4_request, SignedHeaders=, Signature=\udcff",
        "AWS4-HMAC-SHA256 ,=,Credential,Credential==",
        "AWS4-HMAC-SHA256",
        "20150830T123600Z",
        "00000000T000000Z",
        "\udcff",
    ]
) | st.text(st.characters(max_codepoint=255), max_size=40)
PARAMETERS = ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"]


@given(action=ACTIONS, fields=st.lists(FIELDS, max_size=8), url=st.sampled_from([None, "u"]))
def test_forms(action: str, fields: list[tuple[str, str]], url: str | None) -> None:
    form = "&".join([f"Action={action}", *(f"{name}={value}" for name, value in fields)])
    try:
        read_query(form.encode("utf-8", "surrogatepass"), url)
    except SqsError as error:
        AwsQuery().write_error(error, "r")


@given(form=st.binary(max_size=40))
def test_bytes_instead_of_a_form(form: bytes) -> None:
    with suppress(SqsError):
        read_query(b"Action=ListQueues&" + form, None)


@given(action=ACTIONS, document=st.dictionaries(st.sampled_from(NAMES), DOCUMENTS))
def test_documents(action: str, document: object) -> None:
    try:
        read_json(f"AmazonSQS.{action}", json.encode(document))
    except SqsError as error:
        AwsJson(has_query_statuses=True).write_error(error, "r")


@given(body=st.binary(max_size=40))
def test_bytes_instead_of_a_document(body: bytes) -> None:
    with suppress(SqsError):
        read_json("AmazonSQS.ListQueues", body)


@given(
    authorization=HEADER_VALUES,
    date=HEADER_VALUES,
    parameters=st.dictionaries(st.sampled_from(PARAMETERS), HEADER_VALUES | st.just("AWS4-HMAC-SHA256")),
    has_header=st.booleans(),
    now_ms=st.integers(0, 2**42),
)
def test_signatures(authorization: str, date: str, parameters: dict[str, str], has_header: bool, now_ms: int) -> None:
    target = "/?" + "&".join(f"X-Amz-{name}={value}" for name, value in parameters.items())
    signing = (("authorization", authorization), ("x-amz-date", date)) if has_header else ()
    request = SignedRequest("POST", target, (("host", "\udcff"), *signing), b"")
    is_signed(request)
    with suppress(SqsError):
        verify_signature(request, {"k": "secret"}.get, now_ms)
