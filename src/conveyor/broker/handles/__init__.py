"""Transactions of clients that have no producer of their own, by handle: REST.

Here: the handles, the producers that such transactions borrow, and the requests that name a handle. Not here: the
decisions about a transaction (`conveyor.transactions`), their coordinators (`broker.hosts`), and batches (`produce`).
"""
