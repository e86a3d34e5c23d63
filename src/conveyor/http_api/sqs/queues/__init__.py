"""A queue as SQS shows it: its name, URL and ARN, and its attributes, which a topic and a subscription hold.

Not here: what an operation does with a queue (`actions`), or a message (`content`).
"""
