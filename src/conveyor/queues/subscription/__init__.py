"""The subscription: its policy, its filter and its progress.

Not here: the leases of its messages (`queues.delivery`).
"""
