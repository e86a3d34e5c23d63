"""One connection from bytes to bytes: parser, limits, deadlines, budgets. Only `site` touches sockets and the loop.

Not here: paths and documents (`http.endpoints`), and whatever knows a broker (`http_api`).
"""
