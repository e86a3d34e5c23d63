"""Queues: what a subscription does with the records of a log. Pure: no clock, no randomness, no input or output."""
