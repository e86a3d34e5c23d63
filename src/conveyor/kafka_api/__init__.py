"""The Kafka door: framing, codecs, and one file per API. `kio` is imported here only."""

from conveyor.kafka_api.wire.kio_import import load_kio

load_kio()
