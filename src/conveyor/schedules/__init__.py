"""Schedules: the due times of recurring messages, and the handling of missed firings.

Here: decisions based on times only. Not here: storing schedules and publishing their messages (`broker.schedules`).
"""
