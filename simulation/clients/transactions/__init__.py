"""Transactions in the story of a cluster: producers, readers of committed records, and what they are promised."""
