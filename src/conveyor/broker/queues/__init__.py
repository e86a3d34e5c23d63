"""Queue access to topics, by verb: subscriptions, leases, settlements, dead letters, inspection, statistics.

Here: requests of queue clients, and lease requests that wait. Not here: decisions about a message (`queues`), the
state machine of a partition (`broker.coordinators`), publishing (`broker.produce`), browsing a topic (`broker.fetch`).
"""
