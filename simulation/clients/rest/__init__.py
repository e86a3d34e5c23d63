"""Clients of REST: messages through any broker, also too large for Kafka's requests, transactions in one request, and
what they are promised.
"""
