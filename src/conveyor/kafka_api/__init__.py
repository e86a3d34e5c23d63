"""The Kafka door: `wire` handles bytes, `apis` has one file for each API, `registry` lists their handlers, `access`
keeps from them what a client has no right to.

Only this package imports `kio`. Rules of the broker belong to `broker`, sockets to `server`.
"""

from conveyor.kafka_api.wire.kio_import import load_kio

load_kio()
