"""Delivery of messages: leases, ordering, retries, and the messages in delivery of one subscription in one
partition.

Not here: scanning the log for messages (`queues.messages`).
"""
