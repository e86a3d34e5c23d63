"""The errors of SQS for requests that HTTP refuses: those without a login, over a quota, or too large."""

import msgspec

from conveyor.http.engine.problems import Problem
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

_KINDS = {
    400: SqsErrorKind.INVALID_PARAMETER_VALUE,
    401: SqsErrorKind.MISSING_AUTHENTICATION_TOKEN,
    403: SqsErrorKind.ACCESS_DENIED,
    413: SqsErrorKind.BATCH_REQUEST_TOO_LONG,
    429: SqsErrorKind.REQUEST_THROTTLED,
    503: SqsErrorKind.SERVICE_UNAVAILABLE,
    504: SqsErrorKind.SERVICE_UNAVAILABLE,
    507: SqsErrorKind.SERVICE_UNAVAILABLE,
}


def error_of(problem: bytes, *, is_signed: bool) -> SqsError:
    """Return the error of SQS for a problem document. is_signed: whether the request names an access key."""
    decoded = msgspec.json.decode(problem, type=Problem)
    if decoded.status == 401 and is_signed:
        return SqsError(SqsErrorKind.INVALID_CLIENT_TOKEN_ID, "The security token included in the request is invalid.")
    is_server = decoded.status >= 500
    other = SqsErrorKind.INTERNAL_FAILURE if is_server else SqsErrorKind.INVALID_PARAMETER_VALUE
    return SqsError(_KINDS.get(decoded.status, other), decoded.detail)
