"""`conveyor txn`: commands for transactions."""
