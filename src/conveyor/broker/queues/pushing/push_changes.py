"""What a client asks of the target of a push, as a change of the subscription in the metadata.

A target that gets no secret is given a new one. A new secret signs beside the one before it, until a client drops that.
The client that makes a change becomes the owner of the push.
"""

from collections.abc import Mapping
from typing import Any

from conveyor.broker.queues.pushing.push_rights import PushRights
from conveyor.broker.queues.pushing.push_secrets import PushSecrets
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_target import MAX_SECRETS, REQUESTED, PushOwner, PushTarget, changed_target
from conveyor.queues.push.webhook_signature import parse_secret, secret_text

SECRET, ROTATE, DROP, PAUSED = "secret", "rotate_secret", "drop_old_secret", "paused"
"""Fields of a document that are not those of a `PushTarget`."""


class PushChange:
    """One change; call it with the present target, also repeatedly. shown_secret: a secret that was made for it, to be
    shown once; None if there is none.
    """

    def __init__(self, owner: PushOwner, document: Mapping[str, Any], new_secret: str | None, made: str | None) -> None:
        self._owner = owner
        self._fields = {name: value for name, value in document.items() if name not in (SECRET, ROTATE, DROP, PAUSED)}
        self._drops, self._paused = bool(document.get(DROP)), document.get(PAUSED)
        self._new_secret = new_secret
        self.shown_secret = made

    def __call__(self, present: PushTarget | None) -> PushTarget:
        """Return the changed target. Raises RequestError (INVALID_SUBSCRIPTION)."""
        if present is None:
            if "url" not in self._fields:
                raise RequestError(ErrorKind.INVALID_SUBSCRIPTION, "push.url is missing: the push has none yet")
            present = PushTarget(url=self._fields["url"], owner=self._owner)
        secrets = present.secrets[:1] if self._drops else present.secrets
        if self._new_secret is not None and self._new_secret not in secrets:
            secrets = (self._new_secret, *secrets)[:MAX_SECRETS]
        changes = {**self._fields, "owner": self._owner, "secrets": secrets}
        if self._paused is not None:
            changes["paused"] = REQUESTED if self._paused else None
        elif "url" in self._fields and self._fields["url"] != present.url:
            changes["paused"] = None
        return changed_target(present, changes)


class PushChanges:
    """See the module's docstring."""

    def __init__(self, rights: PushRights, secrets: PushSecrets) -> None:
        self._rights = rights
        self._secrets = secrets

    def change(self, caller: Caller, subscription: str, document: Mapping[str, Any], *, is_new: bool) -> PushChange:
        """Return the change of a document. is_new: the subscription has no target yet. Raises RequestError."""
        if document.get("allow_private"):
            self._rights.check_private()
        given = document.get(SECRET)
        if given is not None and document.get(ROTATE):
            both = "push.secret and push.rotate_secret exclude each other: the second makes a secret"
            raise RequestError(ErrorKind.INVALID_SUBSCRIPTION, both)
        makes = given is None and (is_new or bool(document.get(ROTATE)))
        secret = self._secrets.new() if makes else None if given is None else parse_secret(given)
        stored = None if secret is None else self._secrets.stored(subscription, secret)
        shown = secret_text(secret) if makes and secret is not None else None
        return PushChange(self._rights.owner(caller), document, stored, shown)
