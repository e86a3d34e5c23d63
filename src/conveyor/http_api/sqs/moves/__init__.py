"""Message move tasks: they move the messages of a dead-letter queue to another queue, while nobody waits for them.

Here: what is kept of a task, and its run. Not here: the operations that start, list and cancel tasks (`actions`).
"""
