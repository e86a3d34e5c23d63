"""The HTTP door. `engine` serves all endpoints, `requests` parses requests, `rest` and `ops` hold the endpoints.

`application` has the table of endpoints. Rules of the broker belong to `broker`.
"""
