"""The errors of a request whose members are missing, or of a wrong type."""

import re

from msgspec import ValidationError

from conveyor.http_api.sqs.protocols.member_plan import plan_of
from conveyor.http_api.sqs.protocols.sqs_operation import SqsOperation
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, missing_parameter

_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.(\w+)\[(\d+)\]`)?")


def malformed(message: str) -> SqsError:
    """Return the error of a request that cannot be read, whatever its operation."""
    return SqsError(SqsErrorKind.MALFORMED_INPUT, message)


def member_error(operation: SqsOperation, error: ValidationError) -> SqsError:
    """Return the error for members that do not fit. A missing one is named as the query protocol names it."""
    missing = _MISSING.fullmatch(str(error))
    if missing is None:
        return malformed(str(error))
    name, outer, position = missing.groups()
    members = {member.wire_name: member.query_name for member in plan_of(operation.request).members}
    if name == "Entries":
        text = f"There should be at least one {members[name]} in the request."
        return SqsError(SqsErrorKind.EMPTY_BATCH_REQUEST, text)
    return missing_parameter(name if outer is None else f"{members[outer]}.{int(position) + 1}.{name}")
