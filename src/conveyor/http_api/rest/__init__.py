"""The endpoints of the REST API, one file for each noun or verb.

Not here: types that several of them read (`http_api.requests`), and those for operators (`http_api.ops`).
"""
