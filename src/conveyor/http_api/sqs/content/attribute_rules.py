"""The rules for message attributes: their count, names, types and values. Errors have the words of AWS.

Source: SQS developer guide, "Message metadata for Amazon SQS", and what applications report of SQS's answers.
"""

import re
from collections.abc import Mapping
from decimal import Decimal

from conveyor.http_api.sqs.content.message_text import check_text
from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter

MAX_ATTRIBUTES = 10
TRACE_HEADER = "AWSTraceHeader"

_MAX_LENGTH = 256
_MAX_NUMBER_LENGTH = 256
_MAX_DIGITS = 38
_LOWEST, _HIGHEST = Decimal("-1e128"), Decimal("1e126")
_NAME = re.compile("[A-Za-z0-9_.\u00c0-\u017f-]+")
"""Latin letters with accents are not documented, but SQS takes them."""
_RESERVED = ("aws.", "amazon.", ".")
_TYPE = re.compile(r"(String|Number|Binary)(\..*)?", re.DOTALL)
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def check_attributes(attributes: Mapping[str, MessageAttributeValue] | None) -> None:
    """Raise SqsError if a message cannot have these attributes."""
    if not attributes:
        return
    if len(attributes) > MAX_ATTRIBUTES:
        raise invalid_parameter(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value(name, value)


def check_system_attributes(attributes: Mapping[str, MessageAttributeValue] | None) -> None:
    """Raise SqsError if a client cannot send these system attributes: there is one, the trace header of X-Ray."""
    for name, value in (attributes or {}).items():
        if name != TRACE_HEADER:
            raise invalid_parameter(
                f"Message system attribute name '{name}' is invalid. You must use only the following supported "
                f"system attributes: {TRACE_HEADER}."
            )
        if value.data_type != "String":
            raise invalid_parameter(f"The message system attribute '{name}' must have type 'String'.")
        _check_value(name, value)


def _check_name(name: str) -> None:
    if not name:
        raise invalid_parameter("The request must contain non-empty message attribute name.")
    if len(name.encode()) >= _MAX_LENGTH:
        raise invalid_parameter(f"Message (user) attribute names must be shorter than {_MAX_LENGTH} Bytes")
    if not _NAME.fullmatch(name):
        raise invalid_parameter(
            "Message (user) attributes name can only contain upper and lower score characters, digits, periods, "
            "hyphens and underscores. "
        )
    if name.lower().startswith(_RESERVED) or name.endswith("."):
        raise invalid_parameter(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use. Additionally, they cannot start or end with '.'."
        )


def _check_value(name: str, value: MessageAttributeValue) -> None:
    if value.string_list_values is not None or value.binary_list_values is not None:
        raise SqsError(
            SqsErrorKind.UNSUPPORTED_OPERATION,
            "Message attribute list values in SendMessage operation are not supported.",
        )
    kind = _logical_type(name, value.data_type)
    needed, field = (value.binary_value, "Binary") if kind == "Binary" else (value.string_value, "String")
    other = value.string_value if kind == "Binary" else value.binary_value
    if other is not None:
        raise invalid_parameter(f"The message attribute '{name}' with type '{kind}' must use field '{field}'.")
    if needed is None:
        raise invalid_parameter(f"The message attribute '{name}' must contain non-empty message attribute value.")
    if not needed:
        raise invalid_parameter(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
    if isinstance(needed, str):
        check_text(needed)
        if kind == "Number" and not _is_number(needed):
            raise invalid_parameter(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def _logical_type(name: str, data_type: str) -> str:
    """Return the type without its label."""
    if not data_type:
        raise invalid_parameter(f"The message attribute '{name}' must contain non-empty message attribute type.")
    known = _TYPE.fullmatch(data_type)
    if known is None:
        raise invalid_parameter(
            f"The type of message (user) attribute '{name}' is invalid. "
            "You must use only the following supported type prefixes: Binary, Number, String."
        )
    if len(data_type.encode()) >= _MAX_LENGTH:
        raise invalid_parameter(f"Message (user) attribute types must be shorter than {_MAX_LENGTH} Bytes")
    check_text(data_type)
    return known[1]


def _is_number(text: str) -> bool:
    """Return whether a text is a number of 38 digits at most, from -10^128 to 10^126."""
    if len(text) > _MAX_NUMBER_LENGTH or not _DECIMAL.fullmatch(text):
        return False
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    return len(digits) <= _MAX_DIGITS and _LOWEST <= number <= _HIGHEST
