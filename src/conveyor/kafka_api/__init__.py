"""The Kafka door: framing, codecs, and one file per API. `kio` is imported here only."""
