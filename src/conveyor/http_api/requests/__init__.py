"""Reads requests: their bodies, fields and values, each with an error that names the mistake. Knows no endpoint."""
