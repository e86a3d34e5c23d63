"""Coordinators: the state machines of the partitions that this broker leads, and the schedules that it fires.

A machine decides (`groups`, `transactions`, `queues`, `delay`, `schedules`). Its coordinators load it, run it, and
carry out its decisions: they route commands to the right partition, append the records that are forwarded, and publish
the messages of schedules. Not here: the requests of queue clients (`broker.queues`).
"""
