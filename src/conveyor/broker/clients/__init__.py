"""Clients: who they are, and limits on them: quotas, and memory for their requests."""
