"""`conveyor produce` and `conveyor consume`: commands for records."""
