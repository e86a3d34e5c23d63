"""A message between SQS and the log: a request's message as a record, and a leased record as SQS shows it.

Not here: which texts are valid, digests and ids (`content`), or what an operation does with a message (`actions`).
"""
