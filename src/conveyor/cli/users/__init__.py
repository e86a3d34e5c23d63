"""`conveyor user` and `conveyor acl`: who may log in, and who may do what."""
