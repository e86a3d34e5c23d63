"""JSON payloads with decimals that no column holds."""

import pytest
from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

from pyspark_conveyor.payloads.json_payloads import json_decoder, json_schema
from pyspark_conveyor.payloads.payload_schema import BadPayloadError

PRICE = T.StructType([T.StructField("price", T.DecimalType(5, 2))])
KIND = T.StructType([*PRICE, T.StructField("list", T.ArrayType(PRICE)), T.StructField("tag", T.StringType())])


@pytest.mark.parametrize(
    "payload",
    [b'{"price": 1e-9999999}', b'{"list": [null, {"price": "0.5e-999999999"}]}', b'{"price": 0.%d}' % 10**2000],
)
def test_a_decimal_on_which_arrow_would_crash_is_bad(payload: bytes) -> None:
    with pytest.raises(BadPayloadError, match="places, and at most 1000 can be read"):
        json_decoder(json_schema(KIND))(payload)


def test_all_other_decimals_are_left_to_the_column() -> None:
    decode = json_decoder(json_schema(KIND))
    payload = b'{"price": 1e999999, "list": [{"price": "NaN"}, null, {"price": 1.50}], "tag": "1e-9999999"}'
    assert str(decode(payload)["list"][2]["price"]) == "1.50"
