"""`conveyor user`."""
