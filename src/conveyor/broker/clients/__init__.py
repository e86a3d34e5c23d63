"""Clients: who they are, what they may do and have done, and limits on them: quotas, and memory for their requests."""
