"""Attributes that a message can have, and the words of the errors."""

import re
from typing import Any

import pytest

from conveyor.http_api.sqs.content.attribute_rules import check_attributes, check_system_attributes
from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind


def value(data_type: str = "String", **members: Any) -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, **(members or {"string_value": "x"}))


@pytest.mark.parametrize(
    "attributes",
    [
        None,
        {},
        {f"a{number}": value() for number in range(10)},
        {"a.b-c_D9": value(), "größe": value(), "x" * 255: value()},
        {"a": value("String.custom label"), "b": value("Binary.png", binary_value=b"\x00")},
        {"a": value("Number.int", string_value="-7"), "b": value("Number", string_value="+1.50e10")},
        {"a": value("Number", string_value="1e126"), "b": value("Number", string_value="-1e128")},
        {"a": value("Number", string_value="9" * 38 + "000")},
    ],
)
def test_permitted_attributes(attributes: dict[str, MessageAttributeValue] | None) -> None:
    check_attributes(attributes)


@pytest.mark.parametrize(
    ("name", "attribute", "expected"),
    [
        ("", value(), "The request must contain non-empty message attribute name."),
        ("x" * 256, value(), "Message (user) attribute names must be shorter than 256 Bytes"),
        ("a b", value(), "Message (user) attributes name can only contain upper and lower score characters, digits"),
        ("a\n", value(), "Message (user) attributes name can only contain upper and lower score characters, digits"),
        ("日", value(), "Message (user) attributes name can only contain upper and lower score characters, digits"),
        ("AWS.a", value(), "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        ("amazon.a", value(), "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        (".a", value(), "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        ("a.", value(), "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'."),
        ("a", value(""), "The message attribute 'a' must contain non-empty message attribute type."),
        ("a", value("Text"), "The type of message (user) attribute 'a' is invalid. You must use only the following"),
        ("a", value("StringX"), "The type of message (user) attribute 'a' is invalid. You must use only the following"),
        ("a", value("String." + "x" * 249), "Message (user) attribute types must be shorter than 256 Bytes"),
        (
            "a",
            value("String", string_value=""),
            "Message (user) attribute 'a' must contain a non-empty value of type 'S",
        ),
        (
            "a",
            value("Binary", binary_value=b""),
            "Message (user) attribute 'a' must contain a non-empty value of type 'B",
        ),
        (
            "a",
            value("String", string_value=None),
            "The message attribute 'a' must contain non-empty message attribute v",
        ),
        ("a", value("Binary"), "The message attribute 'a' with type 'Binary' must use field 'Binary'."),
        (
            "a",
            value("Number", binary_value=b"1"),
            "The message attribute 'a' with type 'Number' must use field 'String'.",
        ),
        ("a", value("String", string_value="x\x00"), "Invalid characters found."),
        ("a", value("String.\x00"), "Invalid characters found."),
        ("a", value("Number", string_value="x"), "Can't cast the value of message (user) attribute 'a' to a number."),
    ],
)
def test_refused_attributes(name: str, attribute: MessageAttributeValue, expected: str) -> None:
    with pytest.raises(SqsError, match=f"^{re.escape(expected)}") as caught:
        check_attributes({name: attribute})
    assert caught.value.sqs_kind is SqsErrorKind.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    "number", ["NaN", "inf", "1_0", "٣", "1e999", "1e127", "-2e128", "9" * 39, "1" * 10_000, "", "."]
)
def test_refused_numbers(number: str) -> None:
    with pytest.raises(SqsError):
        check_attributes({"a": value("Number", string_value=number)})


def test_message_has_ten_attributes_at_most() -> None:
    with pytest.raises(SqsError, match=r"^Number of message attributes \[11\] exceeds the allowed maximum \[10\].$"):
        check_attributes({f"a{number}": value() for number in range(11)})


@pytest.mark.parametrize("members", [{"string_list_values": []}, {"binary_list_values": [b"x"]}])
def test_lists_are_reserved(members: dict[str, Any]) -> None:
    with pytest.raises(SqsError) as caught:
        check_attributes({"a": value(**members)})
    assert caught.value.sqs_kind is SqsErrorKind.UNSUPPORTED_OPERATION


def test_system_attributes() -> None:
    check_system_attributes(None)
    check_system_attributes({"AWSTraceHeader": value()})
    for name, attribute in (("Other", value()), ("AWSTraceHeader", value("Binary", binary_value=b"x"))):
        with pytest.raises(SqsError):
            check_system_attributes({name: attribute})
