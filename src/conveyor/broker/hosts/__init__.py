"""Hosts of the state machines: consumer groups, transactions, queues, delayed topics, schedules.

A machine decides (`groups`, `transactions`, `queues`, `delay`, `schedules`). Its host loads it, runs it, and carries
out its decisions: it routes commands to the right partition, appends the records that are forwarded, and publishes
the messages of schedules. Not here: the requests of queue clients (`broker.queues`).
"""
