"""Messages as a queue reads them: scanning the log, dead-letter copies.

Not here: the record format (`records`), and the state of a message in a subscription (`queues.delivery`).
"""
