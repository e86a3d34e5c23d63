"""Endpoints: their declaration, look-up and call, their requests and documents, and their description in OpenAPI."""
