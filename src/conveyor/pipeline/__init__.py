"""The PySpark data source `format("conveyor")` and its jobs. They use the broker only through the Kafka protocol."""
