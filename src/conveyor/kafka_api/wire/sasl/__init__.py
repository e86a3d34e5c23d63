"""SASL: how a client of the Kafka door proves who it is. Each mechanism takes messages, and returns messages."""
