"""`conveyor group`: commands for consumer groups."""
