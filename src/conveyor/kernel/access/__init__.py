"""Callers, and the rights that their requests take.

Here: the values that doors, rooms and the calls between brokers pass on. Not here: how a client proves who it is, and
the decision whether it has a right.
"""
