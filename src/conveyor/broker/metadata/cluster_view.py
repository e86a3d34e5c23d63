"""Derives settings, subscriptions and producer ids from the image. Assembled before all other rooms."""

from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.broker.metadata.log_levels import LogLevels
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.services import Services


class ClusterView:
    def __init__(self, services: Services) -> None:
        self.log_levels = LogLevels(services)
        self.dynamic_settings = DynamicSettings(services)
        self.subscriptions = Subscriptions(services)
        self.producer_ids = ProducerIds(services.metadata)
