"""One request as its client sent it."""

from collections.abc import Iterator


class Request:
    """A request. It is complete once its whole body has arrived.

    target: the request target, ASCII. fields: the first value of each header, by lower-case name.
    repeated: the further values of headers, in order. content_length: None without that header.
    keeps_alive: whether the client lets the connection serve further requests. buffer: a body that arrives in parts.
    """

    __slots__ = (
        "body",
        "buffer",
        "content_length",
        "fields",
        "is_complete",
        "is_http_11",
        "keeps_alive",
        "method",
        "received_bytes",
        "repeated",
        "target",
    )

    def __init__(self, method: str, target: bytes, fields: dict[bytes, bytes], *, is_http_11: bool) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.repeated: list[tuple[bytes, bytes]] = []
        self.is_http_11 = is_http_11
        self.keeps_alive = is_http_11
        self.content_length: int | None = None
        self.body = b""
        self.buffer: bytearray | None = None
        self.received_bytes = 0
        self.is_complete = False

    def header(self, name: bytes) -> str | None:
        """Return the first value of a header. name: in lower case. Bytes that are not UTF-8 become surrogates."""
        value = self.fields.get(name)
        return None if value is None else value.decode("utf-8", "surrogateescape")

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield all headers with lower-case names. Values of the same header keep their order."""
        for name, value in (*self.fields.items(), *self.repeated):
            yield name.decode("ascii"), value.decode("utf-8", "surrogateescape")
