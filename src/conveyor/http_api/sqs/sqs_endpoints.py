"""The endpoints of SQS: `/` and the URLs of queues, in AWS JSON and the query protocol.

A request names its operation in a header or in a form, so these endpoints declare no rights. `SqsRequest` checks those
of the operation, which `actions` declares, before it does anything.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import Any
from uuid import uuid4

from conveyor.broker.clients.request_admission import AdmittedRequest
from conveyor.http.endpoints.endpoint import LONG_BODY_BYTES, AnyQuery, Endpoint, Raw, Responder
from conveyor.http.endpoints.router import split_target
from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.http_response import Response
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.sqs.actions.action_table import ACTIONS
from conveyor.http_api.sqs.actions.sqs_action import ActionCall, AnswerForm
from conveyor.http_api.sqs.protocols.aws_json import AwsJson, read_json
from conveyor.http_api.sqs.protocols.aws_query import AwsQuery, read_query
from conveyor.http_api.sqs.protocols.sqs_codec import SqsAnswer, SqsCall, SqsCodec
from conveyor.http_api.sqs.queues.queue_names import ACCOUNT, queue_url
from conveyor.http_api.sqs.refused_requests import error_of
from conveyor.http_api.sqs.signed_requests import SignedRequests, key_id_of
from conveyor.http_api.sqs.sqs_errors import SqsError
from conveyor.kernel.access.declared_access import NO_ACCESS
from conveyor.kernel.errors import RequestError

_JSON_TYPE = "application/x-amz-json"
_BODY_BYTES = 8 << 20
"""A batch of 1 MiB, each of whose bytes may take several in JSON or in a form."""


def serve_sqs(call: HttpCall[AnyQuery, bytes], reply: Responder[Raw]) -> Coroutine[Any, Any, Raw] | None:
    """Carry out an operation of Amazon SQS."""
    return SqsRequest(call).serve(reply)


async def serve_sqs_by_url(call: HttpCall[AnyQuery, None]) -> Raw:
    """Carry out an operation of Amazon SQS that the URL's query names."""
    return await SqsRequest(call).answer()


class SqsRequest:
    """One request, which is answered in the form that it came in, whatever becomes of it."""

    def __init__(self, call: HttpCall[AnyQuery, Any]) -> None:
        self._call = call
        self._codec = codec_of(call.exchange.request)
        self._request_id = str(uuid4())
        signed = call.door.signed_requests
        self._signed = signed if signed is not None and signed.claims(call.exchange) else None
        """The request has come without a login, and must not be carried out before its signature is verified."""

    def serve(self, reply: Responder[Raw]) -> Coroutine[Any, Any, Raw] | None:
        """Reply with the answer, or return a coroutine that makes it."""
        if len(self._call.body) > LONG_BODY_BYTES or self._signed is not None:
            return self.answer()
        try:
            return self._act(self._read(), partial(self._reply, reply))
        except RequestError as error:
            reply(self._failed(error))
            return None

    async def answer(self) -> Raw:
        """Return the answer. A long request is decoded in a thread."""
        try:
            if self._signed is not None:
                await self._log_in(self._signed)
            read = await self._call.broker.slices.in_thread(self._read, self._call.exchange.meter)
            return await self._waited(partial(self._act, read))
        except RequestError as error:
            return self._failed(error)

    async def _log_in(self, signed: SignedRequests) -> None:
        """Note the user who has signed the request. Raises SqsError, after a pause, if the signature is wrong."""
        call, exchange = self._call, self._call.exchange
        try:
            user = await call.broker.slices.in_thread(partial(signed.verify, exchange), exchange.meter)
        except SqsError as error:
            await signed.refuse(exchange, error)
            raise
        exchange.authenticated(user)
        call.caller = exchange.caller
        if exchange.meter is not None:
            exchange.meter = AdmittedRequest(call.broker.clients.quotas, call.broker.clock, user.name, "")
            exchange.meter.check(())

    def _read(self) -> SqsCall:
        request, body = self._call.exchange.request, self._call.body or b""
        if isinstance(self._codec, AwsJson):
            return read_json(request.header(b"x-amz-target") or "", body)
        name = self._call.names.get("queue")
        form = body or split_target(request.target)[1].encode()
        return read_query(form, None if name is None else queue_url("", name))

    def _act(self, sqs: SqsCall, reply: Responder[Raw]) -> Coroutine[Any, Any, Raw] | None:
        """Carry out an operation. Raises RequestError."""
        action = ACTIONS[sqs.operation.name]
        form = AnswerForm(self._codec, sqs.operation, self._request_id)
        call: ActionCall[Any] = ActionCall(self._call, action, sqs.request, form, reply)
        call.check_rights(is_noted=True)
        meter = self._call.exchange.meter
        if meter is not None and action.quotas:
            meter.check(action.quotas)
        work = action.function(call)
        return self._finished(form, work) if isinstance(work, CoroutineType) else None

    async def _finished(self, form: AnswerForm, work: Coroutine[Any, Any, Any]) -> Raw:
        try:
            return form.write(await work)
        except RequestError as error:
            return self._failed(error)

    def _reply(self, reply: Responder[Raw], answer: Any, make: Callable[[Any], Any] | None = None) -> None:
        """Pass an answer on, with its errors in the form of the request."""
        if isinstance(answer, RequestError):
            answer, make = self._failed(answer), None
        elif isinstance(answer, CoroutineType):
            answer = self._made_later(answer)
        reply(answer, make=None if make is None else partial(self._made, make))

    def _made(self, make: Callable[[Any], Any], answer: Any) -> Any:
        try:
            made = make(answer)
        except RequestError as error:
            return self._failed(error)
        return self._made_later(made) if isinstance(made, CoroutineType) else made

    async def _made_later(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            made = await work
            return await made if isinstance(made, CoroutineType) else made
        except RequestError as error:
            return self._failed(error)

    async def _waited(self, submit: Callable[[Responder[Raw]], Coroutine[Any, Any, Raw] | None]) -> Raw:
        """Return the answer of an operation that may reply by callback."""
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(answer: Any, make: Callable[[Any], Any] | None = None) -> None:
            if not replied.done():
                replied.set_result((answer, make))

        work = submit(partial(self._reply, reply))
        if work is not None:
            return await work
        answer, make = await replied
        made: Any = answer if make is None else make(answer)
        shown: Raw = await made if isinstance(made, CoroutineType) else made
        return shown

    def _failed(self, error: RequestError) -> Raw:
        """Return the answer of an operation that failed. What it has leased for the client is given back."""
        self._call.exchange.withdraw()
        answer = self._codec.write_error(error.detached(), self._request_id)
        return Raw(answer.body, answer.content_type, answer.status, answer.headers)


def codec_of(request: Request) -> SqsCodec:
    """Return the codec of the protocol that a request speaks."""
    is_json = b"x-amz-target" in request.fields or (request.header(b"content-type") or "").startswith(_JSON_TYPE)
    if is_json and request.method == "POST":
        return AwsJson(has_query_statuses=request.header(b"x-amzn-query-mode") == "true")
    return AwsQuery()


def refused(exchange: Exchange, response: Response) -> Response:
    """Return the response to a request that was refused before an operation saw it, in the form of the request."""
    error = error_of(response.body, is_signed=key_id_of(exchange.request) is not None)
    answer: SqsAnswer = codec_of(exchange.request).write_error(error, str(uuid4()))
    headers = {**(response.headers or {}), **answer.headers}
    return Response(answer.status, answer.body, answer.content_type, headers, closes=response.closes)


async def _as_it_is(body: bytes) -> bytes:
    """Keep a long body. That there is a reader counts memory for what its texts become."""
    return body


def _body_limit(_context: Any, _names: Any) -> int:
    return _BODY_BYTES


ENDPOINTS = tuple(
    endpoint
    for path in ("/", f"/{ACCOUNT}/{{queue}}")
    for endpoint in (
        Endpoint(
            method="POST",
            path=path,
            needs=NO_ACCESS,
            function=serve_sqs,
            body_limit=_body_limit,
            read=_as_it_is,
            verifies_signatures=True,
            problem_form=refused,
        ),
        Endpoint(
            method="GET",
            path=path,
            needs=NO_ACCESS,
            function=serve_sqs_by_url,
            takes_head=False,
            verifies_signatures=True,
            problem_form=refused,
        ),
    )
)
