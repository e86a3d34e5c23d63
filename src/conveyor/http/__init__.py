"""The HTTP engine below all HTTP doors. It imports only `kernel` and `settings`, so that another program could use it.

`engine` turns bytes into requests and responses into bytes; `endpoints` calls the functions that a door declares.
Endpoints themselves, and what they know of the broker, belong to the doors.
"""
