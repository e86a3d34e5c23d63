"""The query protocol: a form with the operation as `Action` and its members, answered in XML. Older SDKs speak it.

    Action=SendMessage&QueueUrl=...&MessageBody=two+books

    <SendMessageResponse xmlns="..."><SendMessageResult><MessageId>...</MessageId></SendMessageResult>
    <ResponseMetadata><RequestId>...</RequestId></ResponseMetadata></SendMessageResponse>

A form may also be sent to the URL of a queue, which then is its `QueueUrl`. Source:
https://smithy.io/2.0/aws/protocols/aws-query-protocol.html, and the SQS developer guide, "Making Query API requests".
"""

from msgspec import Struct, ValidationError, convert

from conveyor.http_api.sqs.protocols.form_tree import parse_form
from conveyor.http_api.sqs.protocols.member_errors import member_error
from conveyor.http_api.sqs.protocols.member_plan import StructMember, plan_of
from conveyor.http_api.sqs.protocols.query_members import read_members
from conveyor.http_api.sqs.protocols.sqs_codec import SqsAnswer, SqsCall
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS, SqsOperation
from conveyor.http_api.sqs.protocols.xml_members import xml_structure, xml_text
from conveyor.http_api.sqs.sqs_errors import SQS_ERRORS, SqsError, SqsErrorKind, sqs_kind_of, sqs_message_of
from conveyor.kernel.errors import RequestError

XML_CONTENT_TYPE = "text/xml"

_NAMESPACE = 'xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'
_DECLARATION = '<?xml version="1.0"?>'
_OF_NO_QUEUE = {"CreateQueue", "ListQueues"}
"""The operations that a queue's URL does not take."""

_REQUESTS = {name: plan_of(operation.request) for name, operation in OPERATIONS.items()}
_RESULTS = {name: plan_of(operation.result) for name, operation in OPERATIONS.items() if operation.result}


class AwsQuery:
    """The codec of the query protocol."""

    def write_result(self, operation: SqsOperation, result: Struct | None, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that succeeded. Without members it has no element of the result."""
        inner = "" if result is None else _result(operation.name, _RESULTS[operation.name], result)
        metadata = f"<ResponseMetadata><RequestId>{xml_text(request_id)}</RequestId></ResponseMetadata>"
        name = f"{operation.name}Response"
        return _answer(200, f"<{name} {_NAMESPACE}>{inner}{metadata}</{name}>", request_id)

    def write_error(self, error: RequestError, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that failed."""
        kind = sqs_kind_of(error)
        codes = SQS_ERRORS[kind]
        if kind is SqsErrorKind.UNKNOWN_OPERATION:
            return _answer(codes.query_status, "<UnknownOperationException/>", request_id)
        written = "".join(
            (
                f"<ErrorResponse {_NAMESPACE}><Error><Type>{'Sender' if codes.is_senders else 'Receiver'}</Type>",
                f"<Code>{codes.query_code}</Code><Message>{xml_text(sqs_message_of(error, is_query=True))}</Message>",
                f"<Detail/></Error><RequestId>{xml_text(request_id)}</RequestId></ErrorResponse>",
            )
        )
        return _answer(codes.query_status, written, request_id)


def read_query(form: bytes, queue_url: str | None) -> SqsCall:
    """Return the call that a form asks for. Raises SqsError.

    form: the body, or the query string. queue_url: the URL of the queue that the form was sent to, if of one.
    """
    tree = parse_form(form)
    action = tree.get("Action")
    if action is None:
        raise SqsError(SqsErrorKind.UNKNOWN_OPERATION, "The request needs an Action.")
    operation = OPERATIONS.get(action) if isinstance(action, str) else None
    if operation is None or (queue_url is not None and operation.name in _OF_NO_QUEUE):
        raise SqsError(SqsErrorKind.INVALID_ACTION, f"The action {action} is not valid for this endpoint.")
    if queue_url is not None:
        tree.setdefault("QueueUrl", queue_url)
    try:
        return SqsCall(operation, convert(read_members(_REQUESTS[operation.name], tree), operation.request))
    except ValidationError as error:
        raise member_error(operation, error) from error


def _result(operation: str, plan: StructMember, result: Struct) -> str:
    return xml_structure(plan, result, f"{operation}Result")


def _answer(status: int, document: str, request_id: str) -> SqsAnswer:
    written = (_DECLARATION + document).encode()
    return SqsAnswer(status, XML_CONTENT_TYPE, {"x-amzn-RequestId": request_id}, written)
