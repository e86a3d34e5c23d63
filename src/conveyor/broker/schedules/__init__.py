"""Fires the schedules whose topics this broker leads, and changes the schedules of the cluster.

Here: the alarms, the publication of messages, the record of completed firings. Not here: when a schedule fires
(`conveyor.schedules`).
"""
