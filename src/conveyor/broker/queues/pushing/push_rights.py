"""The rights of pushes: those of their owners at the moment, and the addresses that the operator permits."""

from functools import partial

from conveyor.broker.clients.access_control import AccessControl
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.declared_access import READ
from conveyor.kernel.access.scram import ScramMechanism
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_target import PushOwner
from conveyor.queues.subscription.policy import Subscription

_REQUEST = "push"
"""The name of what a push does, in the audit."""


class PushRights:
    def __init__(self, services: Services, access: AccessControl) -> None:
        self._metadata = services.metadata
        self._access = access
        self.allow_private = services.settings.push.allow_private
        """Whether subscriptions may push to addresses that are not public."""

    def check_private(self) -> None:
        """Raise RequestError (POLICY_VIOLATION) if the operator has not permitted addresses that are not public."""
        if not self.allow_private:
            raise RequestError(
                ErrorKind.POLICY_VIOLATION,
                "this broker pushes to public addresses only: its operator can permit others (push.allow_private)",
            )

    def owner(self, caller: Caller) -> PushOwner:
        """Return a caller as the owner of a push."""
        user = caller.principal.name
        return PushOwner(user=user, address=caller.address, has_password=_has_password(self._metadata.image, user))

    def may_read(self, subscription: Subscription, owner: PushOwner, *, is_noted: bool = False) -> bool:
        """Return whether an owner may lease messages of a subscription, as a consumer with the same rights may.

        is_noted: the audit hears of it.
        """
        if owner.has_password and not _has_password(self._metadata.image, owner.user):
            return False
        permits = partial(self._access.permits, owner.caller, _REQUEST)
        decides = permits if is_noted else partial(self._access.allows, owner.caller)
        return all(decides(READ, resource_type, name) for resource_type, name in _resources(subscription))


def _resources(subscription: Subscription) -> tuple[tuple[ResourceType, str], ...]:
    return (ResourceType.GROUP, subscription.name), (ResourceType.TOPIC, subscription.topic)


def _has_password(image: ClusterImage, user: str) -> bool:
    return any((user, mechanism) in image.scram for mechanism in ScramMechanism)
