"""The client that sends messages to push targets by HTTP: addresses, connections, requests.

Not here: what a request contains (`queues.push`) and when it is sent (`broker.queues.pushing`).
"""
