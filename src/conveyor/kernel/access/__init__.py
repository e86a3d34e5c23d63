"""Callers, and the types by which both doors declare the rights that a request needs.

Here: the values that doors, rooms and the calls between brokers pass on. Not here: how a client proves who it is, and
the decision whether it has a right.
"""
