"""The controller's decisions: pure functions of an image and a request, which return changes or raise RequestError.

Here: which brokers are live, who leads a partition, its ISR, its replicas, plans to move them, and the fold of many
events into one entry.
Not here: observing the store, sending requests to the controller, and electing the controller itself
(`broker.metadata`).
"""
