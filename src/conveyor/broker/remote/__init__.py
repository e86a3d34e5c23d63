"""Calls between brokers: what this broker asks of the leader of a partition elsewhere, and what others ask of it.

Here: typed calls, their frames, the links that carry them, and the choice between this broker and another one. Not
here: what a call does, which the room that does it registers. A call is never passed on: one hop at most.
"""
