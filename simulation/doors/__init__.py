"""Connects the clients of a story to its brokers: in memory, at the brokers' real doors, with a client for each door.

    client_network   connections in memory, with delays, cuts within frames, half-closed ends and resets
    broker_doors     the listeners of one broker process
    kafka_link       one connection of a client that speaks Kafka's protocol; kafka_requests has what it asks
    rest_link        one connection of a client that speaks HTTP; rest_requests has what it asks
    client_door      one client's connections to all brokers, and how it finds leaders

No client reaches past the doors. Checks that need a broker's own state watch the moment at which a request arrives or
its answer leaves (`Watch`).
"""
