"""The broker's services for all doors. `BrokerNode` assembles the rooms, one for each task.

A rule that holds for one door holds for all, so it lives here. Not here: protocols (`kafka_api`, `http_api`), decisions
that need no input or output (the packages below).
"""
