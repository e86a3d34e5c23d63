"""Coordinators: the state machines of the partitions that this broker leads.

A machine decides (`groups`, `transactions`, `queues`, `delay`). Its coordinators load it, run it, and carry out its
decisions: they route commands to the right partition, and append the records that are forwarded. Not here: the requests
of queue clients (`broker.queues`).
"""
