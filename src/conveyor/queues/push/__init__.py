"""Delivery of a subscription's messages by HTTP POST, as far as it is a decision: the content of a request, the meaning
of an answer, and the number of requests that may be open.

Not here: which message is next (`queues.delivery`), and the requests themselves (`broker.queues.pushing`).
"""
