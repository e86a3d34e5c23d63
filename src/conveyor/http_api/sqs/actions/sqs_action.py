"""An operation as this broker carries it out: its function, and the rights and quotas that it counts for.

    async def purge_queue(call: ActionCall[PurgeQueueRequest]) -> None:

returns the result, None for an operation without one. A function that is no coroutine answers by `call.reply`, so that
no task is created for a request.

Rights name `queue`, which is both the topic and the subscription, and `dead_letter_queue`, if a request gives one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from conveyor.broker.broker_node import BrokerNode
from conveyor.http.endpoints.endpoint import Raw, Responder
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.sqs.protocols.sqs_codec import SqsCodec
from conveyor.http_api.sqs.protocols.sqs_operation import SqsOperation
from conveyor.http_api.sqs.queues.queue_names import existing_queue, queue_name_of, queue_url
from conveyor.kernel.access.declared_access import NO_ACCESS, Needs
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Subscription
from conveyor.settings.sqs_settings import SqsSettings

Members = TypeVar("Members", bound=Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsAction:
    """See the module's docstring.

    queue: returns the name of the queue that a request is about; None for an operation on none, or on all.
    dead_letter_queue: returns the dead-letter queue that a request gives, which needs `dead_letter_needs`.
    """

    function: Callable[["ActionCall[Any]"], Any]
    needs: Needs
    queue: Callable[[Any], str] | None = lambda members: queue_name_of(members.queue_url)
    dead_letter_queue: Callable[[Any], str | None] | None = None
    dead_letter_needs: Needs = NO_ACCESS
    quotas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a request is answered. request_id: the id that the answer has."""

    codec: SqsCodec
    operation: SqsOperation
    request_id: str

    def write(self, result: Struct | None) -> Raw:
        """Return the answer with a result."""
        answer = self.codec.write_result(self.operation, result, self.request_id)
        return Raw(answer.body, answer.content_type, answer.status, answer.headers)


class ActionCall(Generic[Members]):
    """One request. members: of the operation's type. queue_name: empty for an operation on no queue."""

    __slots__ = ("_responder", "action", "form", "http", "members", "queue_name")

    def __init__(
        self, http: HttpCall[Any, Any], action: SqsAction, members: Members, form: AnswerForm, reply: Responder[Raw]
    ) -> None:
        self.http = http
        self.action = action
        self.members = members
        self.form = form
        self.queue_name = "" if action.queue is None else action.queue(members)
        self._responder = reply

    @property
    def broker(self) -> BrokerNode:
        return self.http.broker

    @property
    def settings(self) -> SqsSettings:
        return self.broker.settings.sqs

    def reply(self, answer: Any, make: Callable[[Any], Struct | None]) -> None:
        """Answer with the result that is made of an answer of the broker, or with its error."""
        self._responder(answer, make=partial(self._written, make))

    @property
    def responder(self) -> Responder[Raw]:
        """For an answer that is written already."""
        return self._responder

    def queue(self) -> Subscription:
        """Return the queue. Raises SqsError."""
        return existing_queue(self.broker, self.queue_name)

    def url_of(self, name: str) -> str:
        """Return the URL of a queue, at the host that the client has asked."""
        endpoint = self.settings.endpoint
        if not endpoint:
            scheme, _, address = self.broker.settings.network.http.rpartition("://")
            host = self.http.exchange.request.header(b"host") or address
            endpoint = f"{scheme or 'http'}://{host}"
        return queue_url(endpoint, name)

    def check_rights(self, *, is_noted: bool) -> None:
        """Raise RequestError if the client lacks a right, or its login has ended while the request waited."""
        if self.http.exchange.is_logged_out:
            raise RequestError(ErrorKind.CLUSTER_AUTHORIZATION_FAILED, "the credential of the user has changed")
        rights, action = self.http.door.rights, self.action
        if rights is None:
            return
        names: dict[str, str] = {} if action.queue is None else {"queue": self.queue_name}
        self._check(action.needs, names, is_noted=is_noted)
        named = None if action.dead_letter_queue is None else action.dead_letter_queue(self.members)
        if named is not None:
            self._check(action.dead_letter_needs, {"dead_letter_queue": named}, is_noted=is_noted)

    def _check(self, needs: Needs, names: Mapping[str, str], *, is_noted: bool) -> None:
        rights = self.http.door.rights
        if rights is not None:
            rights.check(self.http.caller, f"SQS {self.form.operation.name}", needs, names, is_noted=is_noted)

    def _written(self, make: Callable[[Any], Struct | None], answer: Any) -> Raw:
        return self.form.write(make(answer))
