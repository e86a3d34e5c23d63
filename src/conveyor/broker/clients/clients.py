"""The room of users, of what they may do, and of limits on clients, assembled."""

from itertools import count

from conveyor.broker.clients.access_control import AccessControl
from conveyor.broker.clients.audit_writer import AuditWriter
from conveyor.broker.clients.bearer_tokens import BearerTokens, KeySource
from conveyor.broker.clients.connection_counts import ConnectionCounts
from conveyor.broker.clients.credentials import Credentials
from conveyor.broker.clients.quota_enforcement import Quotas
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.request_budget import RequestBudget


class Clients:
    """See the module's docstring.

    key_source: of bearer tokens. connection_numbers: the next connection of a client takes the next one.
    """

    def __init__(
        self, services: Services, topics: Topics, publisher: MessagePublisher, key_source: KeySource | None
    ) -> None:
        self.quotas = Quotas(services)
        self.credentials = Credentials(services)
        self.tokens = BearerTokens(services, key_source)
        self.access = AccessControl(services)
        if self.access.audit is not None:
            AuditWriter(services, self.access.audit, topics, publisher)
        self.request_budget = RequestBudget(services.settings.network.max_buffered_bytes)
        self.connection_counts = ConnectionCounts(services)
        self.connection_numbers = count(1)
