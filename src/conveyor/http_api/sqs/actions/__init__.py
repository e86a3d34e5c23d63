"""What each operation does, by the faces of the broker that REST uses, and the rights that it needs.

Not here: the forms of requests and answers (`protocols`), and what the metadata holds of a queue (`queues`).
"""
