"""The PySpark data source `format("conveyor")` and its jobs.

They are clients of the broker. Of its packages they use only `records`, the format of record batches.
"""
