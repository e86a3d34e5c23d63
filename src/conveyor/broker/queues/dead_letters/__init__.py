"""Dead letters of subscriptions: writing their copies, showing them, redriving and dropping them.

Not here: the decision that a message is undeliverable (`queues.delivery`), and the list of dead letters, which is part
of a subscription's state (`queues.subscription`).
"""
