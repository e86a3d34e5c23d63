"""Clients of a queue that is ordered by key, and what they are promised. They lease several messages of a key at once,
and acknowledge some too late.
"""
