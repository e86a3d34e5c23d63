"""Fetching: reads of consumers, fetch sessions, offsets by time, browsing single messages.

Not here: leases of messages (`broker.queues`), sending the bytes (`server`).
"""
