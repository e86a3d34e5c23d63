"""The HTTP door. `engine` serves any endpoint, `requests` reads them, `rest` and `ops` are the endpoints.

`application` holds the table of endpoints. Not here: any rule of the broker (`broker`).
"""
