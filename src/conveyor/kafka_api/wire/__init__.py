"""The Kafka protocol's bytes: framing, connections, codecs, versions, hand-packed responses. Handlers are in `apis`."""
