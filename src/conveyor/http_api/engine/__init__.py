"""The parts that all endpoints share: connections, responses, problem documents, limits, OpenAPI."""
