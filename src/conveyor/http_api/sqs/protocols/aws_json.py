"""AWS JSON 1.0: `POST /` with the operation in `X-Amz-Target: AmazonSQS.SendMessage`, and its members as an object.

A client that asks for it by `x-amzn-query-mode: true` gets the HTTP statuses of the query protocol with errors.
Source: https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html and .../aws-query-protocol.html.
"""

from typing import Any

from msgspec import DecodeError, Struct, ValidationError, json

from conveyor.http_api.sqs.protocols.member_errors import malformed, member_error
from conveyor.http_api.sqs.protocols.sqs_codec import SqsAnswer, SqsCall
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS, SqsOperation
from conveyor.http_api.sqs.sqs_errors import (
    SQS_ERRORS,
    SqsError,
    SqsErrorKind,
    sqs_kind_of,
    sqs_message_of,
)
from conveyor.kernel.errors import RequestError

JSON_CONTENT_TYPE = "application/x-amz-json-1.0"

_TARGET_PREFIX = "AmazonSQS."
_DECODERS: dict[str, json.Decoder[Any]] = {name: json.Decoder(known.request) for name, known in OPERATIONS.items()}
_encode = json.Encoder().encode


class AwsJson:
    """The codec of AWS JSON. has_query_statuses: whether the client asks for the statuses of the query protocol."""

    def __init__(self, *, has_query_statuses: bool) -> None:
        self._has_query_statuses = has_query_statuses

    def write_result(self, operation: SqsOperation, result: Struct | None, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that succeeded. Without members its body is empty, as AWS has it."""
        body = b"" if result is None else _encode(result)
        return SqsAnswer(200, JSON_CONTENT_TYPE, {"x-amzn-RequestId": request_id}, body)

    def write_error(self, error: RequestError, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that failed."""
        codes = SQS_ERRORS[sqs_kind_of(error)]
        status = codes.query_status if self._has_query_statuses else codes.json_status
        headers = {"x-amzn-RequestId": request_id, "x-amzn-query-error": codes.query_error}
        body = _encode({"__type": codes.json_type, "message": sqs_message_of(error, is_query=False)})
        return SqsAnswer(status, JSON_CONTENT_TYPE, headers, body)


def read_json(target: str, body: bytes) -> SqsCall:
    """Return the call that a request asks for. target: the header X-Amz-Target. Raises SqsError."""
    operation = OPERATIONS.get(target.removeprefix(_TARGET_PREFIX)) if target.startswith(_TARGET_PREFIX) else None
    if operation is None:
        raise SqsError(SqsErrorKind.UNKNOWN_OPERATION, f"{_TARGET_PREFIX}<operation> is none of SQS: {target[:100]!r}")
    try:
        return SqsCall(operation, _DECODERS[operation.name].decode(body or b"{}"))
    except ValidationError as error:
        raise member_error(operation, error) from error
    except RecursionError as error:
        raise malformed("The body is nested too deeply") from error
    except (DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"The body is not JSON: {error}") from error
