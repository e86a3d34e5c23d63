"""Clients of REST: messages through any broker, transactions in one request, and what they are promised."""
