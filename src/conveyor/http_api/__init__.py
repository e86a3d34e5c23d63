"""HTTP: the REST API, its description of itself, health and metrics. One noun a module; `application` has the table."""
