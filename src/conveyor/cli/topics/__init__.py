"""`conveyor topic`: commands for topics."""
