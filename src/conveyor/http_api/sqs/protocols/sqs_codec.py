"""The shape of both codecs: a request becomes a call of an operation, and its result or error an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from conveyor.http_api.sqs.protocols.sqs_operation import SqsOperation
from conveyor.kernel.errors import RequestError


@dataclass(frozen=True, slots=True)
class SqsCall:
    """An operation that a client asks for. request: of the type `operation.request`."""

    operation: SqsOperation
    request: Struct


@dataclass(frozen=True, slots=True)
class SqsAnswer:
    """An answer as it is sent. headers: without Content-Type."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes


class SqsCodec(Protocol):
    """Writes answers. How a request is read differs: an operation is named in a header, or in the form."""

    def write_result(self, operation: SqsOperation, result: Struct | None, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that succeeded. result: of the type `operation.result`."""

    def write_error(self, error: RequestError, request_id: str) -> SqsAnswer:
        """Return the answer of an operation that failed."""
