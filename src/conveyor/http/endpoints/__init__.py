"""Endpoints: their declaration, look-up and call, their requests and documents, and their description in OpenAPI.

Not here: connections (`http.engine`), and the endpoints themselves (`http_api`).
"""
