"""The canonical form of a request, over which AWS Signature Version 4 is computed. SQS encodes the path once more.

    method
    path               without dot segments, percent-encoded
    query              its parameters percent-encoded, in order
    headers            name:value for each signed one, in order

    names of the signed headers
    SHA-256 of the body

Source: IAM user guide, "Create a signed AWS API request".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote, unquote_to_bytes


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as its client sent it. target: path and query, undecoded. headers: with names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first value of a header. name: in lower case."""
        return next((value for known, value in self.headers if known == name), None)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """The parameters of the query string, decoded and encoded again: names and values, as they are signed."""
        _, _, query = self.target.partition("?")
        if not query:
            return []
        fields = (field.partition("=") for field in query.split("&") if field)
        return [(_normalized(name), _normalized(value)) for name, _, value in fields]


def canonical_request(request: SignedRequest, signed_headers: Iterable[str], left_out: str | None) -> bytes:
    """Return the canonical form of a request.

    signed_headers: names in lower case. left_out: the parameter of the query that has the signature itself.
    """
    names = list(signed_headers)
    parameters = sorted(pair for pair in request.parameters if pair[0] != left_out)
    lines = [
        request.method,
        _canonical_path(request.target.partition("?")[0]),
        "&".join(f"{name}={value}" for name, value in parameters),
        *(f"{name}:{_canonical_value(request, name)}" for name in names),
        "",
        ";".join(names),
        sha256(request.body).hexdigest(),
    ]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _normalized(text: str) -> str:
    return quote(unquote_to_bytes(text.encode("utf-8", "surrogateescape")), safe="-._~")


def _canonical_path(path: str) -> str:
    if path == "/":
        return path
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in {"", "."}:
            segments.append(segment)
    joined = "/".join(segments)
    ends = "/" if segments and path.endswith("/") else ""
    return quote(f"/{joined}{ends}".encode("utf-8", "surrogateescape"), safe="/-._~")


def _canonical_value(request: SignedRequest, name: str) -> str:
    """Return the values of a header, without the spaces around them and with single ones inside."""
    return ",".join(" ".join(value.split()) for known, value in request.headers if known == name)
