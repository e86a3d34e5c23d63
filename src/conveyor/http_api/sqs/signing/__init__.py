"""Signatures of requests: AWS Signature Version 4, in headers or in a query string. Pure functions."""
