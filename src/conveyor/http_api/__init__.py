"""The HTTP door, on `conveyor.http`. `rest`, `sqs` and `ops` hold the endpoints; `requests` has what several read.

`application` has the table of endpoints. Rules of the broker belong to `broker`.
"""
