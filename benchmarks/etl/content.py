"""Hashes of what topics and tables contain, in any order: of each record's partition, timestamp (ms), key, value and
headers, with nulls told from empty bytes.

A record's hash is SHA-256 over its fields in a form that Python and Spark build in the same way; a content's hash is
the number of records and two sums over halves of their hashes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HALF = 15
"""Hexadecimal digits of a half: their sum over 10 million records fits into Spark's widest number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record, without its offset."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Content(NamedTuple):
    """The hash of many records. Those of two contents with the same records are equal."""

    records: int = 0
    first_sum: int = 0
    second_sum: int = 0

    def plus(self, record: Record) -> "Content":
        digest = sha256(_canonical(record)).hexdigest()
        first, second = int(digest[:_HALF], 16), int(digest[_HALF : 2 * _HALF], 16)
        return Content(self.records + 1, self.first_sum + first, self.second_sum + second)


def content_of(records: Iterable[Record]) -> Content:
    content = Content()
    for record in records:
        content = content.plus(record)
    return content


def content_of_table(table: "DataFrame") -> Content:
    """Let Spark compute the hash of a table with the columns of the data source."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    place = F.concat_ws(";", F.col("partition"), F.unix_millis("timestamp"), F.lit(""))
    headers = F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>"))
    together = F.aggregate(
        headers,
        F.lit(bytearray()),
        lambda joined, header: F.concat(joined, _field(F.encode(header["key"], "UTF-8")), _field(header["value"])),
    )
    count = F.encode(F.concat(F.size(headers).cast("string"), F.lit(";")), "UTF-8")
    canonical = F.concat(F.encode(place, "UTF-8"), _field(F.col("key")), _field(F.col("value")), count, together)
    digest = F.sha2(canonical, 256)
    hashed = table.select(_number(digest, 1).alias("first"), _number(digest, 1 + _HALF).alias("second"))
    row = hashed.agg(F.count("*"), F.sum("first"), F.sum("second")).collect()[0]
    return Content(row[0], int(row[1] or 0), int(row[2] or 0))


def _canonical(record: Record) -> bytes:
    parts = [b"%d;%d;" % (record.partition, record.timestamp_ms), _bytes_field(record.key), _bytes_field(record.value)]
    parts.append(b"%d;" % len(record.headers))
    for name, value in record.headers:
        parts += [_bytes_field(name.encode()), _bytes_field(value)]
    return b"".join(parts)


def _bytes_field(data: bytes | None) -> bytes:
    return b"-" if data is None else b"%d:%s" % (len(data), data)


def _field(data: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    size = F.encode(F.concat(F.length(data).cast("string"), F.lit(":")), "UTF-8")
    return F.when(data.isNull(), F.lit(bytearray(b"-"))).otherwise(F.concat(size, data))


def _number(digest: "Column", start: int) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return F.conv(F.substring(digest, start, _HALF), 16, 10).cast("decimal(38,0)")
