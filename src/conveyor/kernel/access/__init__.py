"""Callers, the credentials of users, and the types by which both doors declare the rights that a request needs.

Here: the values that doors, rooms and the calls between brokers pass on, what can be checked with a credential, and the
limit of log lines about strangers. Not here: the messages by which a client proves who it is, and the decision whether
it has a right.
"""
