"""One connection from bytes to bytes: parser, limits, deadlines, budgets. Only `site` touches sockets and the loop."""
