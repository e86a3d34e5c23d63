"""Delayed messages: the state machine that decides when records of an inbox are forwarded to their topic.

Here: the forwarder's decisions and its stored notes. Not here: appending to the topic (`broker.hosts`).
"""
