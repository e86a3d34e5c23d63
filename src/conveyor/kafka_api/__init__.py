"""The Kafka door. `wire` knows bytes and no handler, `apis` has one file for each API, `registry` lists them.

`kio` is imported here only. Not here: any rule of the broker (`broker`), sockets (`server`).
"""

from conveyor.kafka_api.wire.kio_import import load_kio

load_kio()
