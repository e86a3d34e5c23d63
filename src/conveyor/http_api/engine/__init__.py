"""The machinery of every endpoint: connections, responses, problem documents, limits, OpenAPI. Knows no endpoint."""
