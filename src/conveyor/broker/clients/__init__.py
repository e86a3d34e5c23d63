"""Limits on clients: quotas, and memory for their requests."""
