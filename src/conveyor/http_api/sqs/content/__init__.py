"""The parts of a message: permitted text, attributes, their digests, ids and receipt handles. Pure functions."""
