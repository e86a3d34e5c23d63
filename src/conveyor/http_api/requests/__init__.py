"""Reads requests of all endpoints: bodies, fields and values. Errors name the field and its mistake."""
