"""The operations of SQS with the members of their requests and answers, and the two codecs that these types drive.

Not here: which values are valid (`content`), or what an operation does.
"""
