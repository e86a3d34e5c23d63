"""The services of machines that read a log of messages: queues and forwarders."""

import msgspec

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.services import Services
from conveyor.log.cache_share import CacheShare


class MachineServices(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring. common: the services of all rooms."""

    common: Services
    cache: CacheShare
    room: DiskRoom
    retention: Retention
