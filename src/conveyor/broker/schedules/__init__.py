"""Fires the schedules whose topics this broker leads, and changes the schedules of the cluster.

Here: the alarms, the publication of messages, the proposals. Not here: when a schedule fires (`conveyor.schedules`),
decisions on the image (`cluster.schedule_decisions`).
"""
