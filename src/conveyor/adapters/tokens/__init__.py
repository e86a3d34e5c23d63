"""Bearer tokens of clients: the keys that sign them, from a file or a URL, and the check of a signature.

Not here: the claims of a token and the user that they name (`broker.clients`).
"""
