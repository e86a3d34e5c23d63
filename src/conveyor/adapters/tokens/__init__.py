"""Bearer tokens of clients: the keys that sign them, from a file or a URL, and the check of a signature."""
