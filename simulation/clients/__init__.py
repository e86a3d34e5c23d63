"""Clients of a story, which reach brokers by their doors, and the promises made to them."""
