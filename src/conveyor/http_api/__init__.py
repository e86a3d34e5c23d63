"""The HTTP door, on `conveyor.http`. `requests` has the types of its fields; `rest` and `ops` hold the endpoints.

`application` has the table of endpoints. Rules of the broker belong to `broker`.
"""
