"""`python -m benchmarks.etl`, or `make etl-hashes`: source = lake = replayed topic, for 10 million records.

The records are those of the demonstration, repeated, with nulls, empty keys and values, and headers; they come in all
codecs, inside and outside of transactions of which some are aborted, and a tenth as many in a compacted topic. Prints
the hash of each copy, and fails if two copies of a topic differ.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.etl.copies import Found, copies
from benchmarks.spark_settings import running_broker
from pyspark_conveyor.spark.session import spark_session


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.etl", description="Compare a topic with its copies.")
    parser.add_argument("--records", type=int, default=10_000_000, help="of the larger topic (10,000,000)")
    parser.add_argument("--chunk", type=int, default=20_000, help="records of a transaction")
    parser.add_argument("--directory", type=Path, help="where data goes; by default a temporary directory")
    arguments = parser.parse_args()
    console = Console()
    found: list[Found] = []
    with (
        tempfile.TemporaryDirectory(prefix="conveyor-etl-", dir=arguments.directory) as name,
        running_broker(Path(name) / "broker", "--set=broker.compaction_check_ms=100") as servers,
    ):
        spark = spark_session("content hashes", "local[2]")
        try:
            for each in copies(spark, servers, Path(name), arguments.records, arguments.chunk):
                found.append(each)
                content = each.content
                console.print(
                    f"{each.topic}, {each.copy}: {content.records:,} records,"
                    f" {content.first_sum:x}-{content.second_sum:x}, {each.seconds:,.0f} s",
                    highlight=False,
                )
        finally:
            spark.stop()
    if differing(found):
        sys.exit(f"not the same content: {', '.join(differing(found))}")
    console.print("All copies have the same content.")


def differing(found: list[Found]) -> list[str]:
    """Return the topics whose copies are not the same."""
    return [
        topic
        for topic in dict.fromkeys(each.topic for each in found)
        if len({each.content for each in found if each.topic == topic}) != 1
    ]


if __name__ == "__main__":
    main()
