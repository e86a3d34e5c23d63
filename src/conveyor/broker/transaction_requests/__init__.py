"""Transactions of clients that have no producer: each is one request, whose messages and acknowledgements count all
together or not at all.

Here: the requests, the producers that run them, and repeated requests. Not here: the decisions about a transaction and
the answers that are kept (`conveyor.transactions`), their coordinators (`broker.coordinators`), and batches
(`broker.produce`).
"""
