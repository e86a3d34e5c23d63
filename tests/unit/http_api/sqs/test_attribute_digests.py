"""Digests of bodies and attributes.

The expected values are those that SQS has answered, as recorded by LocalStack's tests against AWS, and the examples of
the npm package aws-md5-of-message-attributes.
"""

import pytest

from conveyor.http_api.sqs.content.attribute_digests import attribute_digest, body_digest
from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue


def text(value: str, data_type: str = "String") -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, string_value=value)


def blob(value: bytes) -> MessageAttributeValue:
    return MessageAttributeValue(data_type="Binary", binary_value=value)


FLOAT = text("4563442423554324324264524243.32543234", "Number.float")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")},
            "4c360f3fdafd970e05fae2f149d997f5",
        ),
        ({"General": text("Kenobi"), "Hello": text("There")}, "fca026605781cb4126a1e9044df24232"),
        ({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd"),
        ({"Hello": text("There"), "Help.Me": text("Me")}, "83fee93c1bcd8b9a5a923ffacdc636c7"),
        ({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        (
            {"attr1": blob(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")},
            "8cbe4db156db8a94db8b801b7addb984",
        ),
        ({"attribName1": text("attribValue 1")}, "19e27d4e946b072f3f58da80d94fd778"),
        ({"customNumberTypeAttrib": FLOAT}, "9fe1b90bbd9965bdf77bac517c7d2495"),
        ({"binaryAttribute": blob(b"Hello binary world!")}, "31a92b15d92f8db860eda32aceb656c3"),
        (
            {
                "attribName1": text("attribValue 1"),
                "customNumberTypeAttrib": FLOAT,
                "binaryAttribute": blob(b"Hello binary world!"),
            },
            "c932db14a896c663f83c260297d594ff",
        ),
    ],
)
def test_digest_of_attributes(attributes: dict[str, MessageAttributeValue], expected: str) -> None:
    assert attribute_digest(attributes) == expected


def test_message_without_attributes_has_no_digest_of_them() -> None:
    assert attribute_digest(None) is None
    assert attribute_digest({}) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("msg", "6e2baaf3b97dbeef01c0043275f9a0e7"),
        ("test", "098f6bcd4621d373cade4e832627b4f6"),
        ("message-body-1", "19c9e282d65f9733bc6b35d50062c7ee"),
    ],
)
def test_digest_of_a_body(body: str, expected: str) -> None:
    assert body_digest(body) == expected
