"""Reads requests of all endpoints: bodies, fields and values. Errors name the field and its mistake.

Not here: structs and limits of one noun (`http_api.rest`).
"""
