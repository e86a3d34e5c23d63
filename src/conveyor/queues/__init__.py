"""Queue access to a topic: one state machine for each partition, with all its subscriptions.

Here: the machine and its commands. The rooms hold subscriptions, delivery, and the messages in the log. Pure: no clock,
randomness, input or output. Not here: requests that wait for messages (`broker.queues`), and loading a machine
(`broker.coordinators`).
"""
