"""Orders that need approval: from one topic, by way of a query, to another topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
BOOTSTRAP = os.environ.get("CONVEYOR_BOOTSTRAP", "127.0.0.1:9092")

dp.create_sink(
    "approvals",
    "conveyor",
    {"bootstrap.servers": BOOTSTRAP, "topic": "approvals", "delivery": "exactly-once"},
)


@dp.temporary_view
def orders() -> DataFrame:
    """The orders, with the fields of their JSON values as columns."""
    records = (
        spark.readStream.format("conveyor")
        .option("bootstrap.servers", BOOTSTRAP)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.selectExpr("from_json(CAST(value AS STRING), 'id long, amount double') AS order", "timestamp")


@dp.append_flow(target="approvals")
def large_orders() -> DataFrame:
    """One record for each large order, with the order's id as the key."""
    return (
        spark.readStream.table("orders")
        .where("order.amount >= 1000")
        .selectExpr("CAST(order.id AS STRING) AS key", "to_json(order) AS value", "timestamp")
    )
