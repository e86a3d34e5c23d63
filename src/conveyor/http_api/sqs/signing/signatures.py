"""Verification of AWS Signature Version 4, in the header Authorization or in a query string (a presigned URL).

    key        HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), service), "aws4_request")
    signature  HMAC(key, algorithm, time, scope and SHA-256 of the canonical request, one a line)

A signature is valid for 15 minutes before and after its time, one in a query string for as long as it says. Source: IAM
user guide, "AWS Signature Version 4 for API requests"; the errors are those that AWS gives.
"""

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from urllib.parse import unquote

from conveyor.http_api.sqs.signing.canonical_request import SignedRequest, canonical_request
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

SecretLookup = Callable[[str], str | None]
"""Returns the secret of an access key id, or None if there is no such key."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_TERMINATOR = "aws4_request"
_SKEW = timedelta(minutes=15)
_MAX_EXPIRES_S = 7 * 24 * 3600
_MAX_SIGNED_HEADERS = 100
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_ALWAYS_SIGNED = ("host", "x-amz-target")
"""A request that has one of these has to sign it: an unsigned X-Amz-Target could be exchanged."""

_PARTS = ("Credential", "Signature", "SignedHeaders")
_QUERY_PARTS = ("X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date", "X-Amz-Expires")
_MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """The parts of a signature. time: as the client wrote it. expires: the duration after which it is too late.

    left_out: see `canonical_request`.
    """

    key_id: str
    scope: tuple[str, ...]
    signed_headers: tuple[str, ...]
    signature: str
    time: str
    signed_at: datetime
    expires: timedelta
    left_out: str | None


def is_signed(request: SignedRequest) -> bool:
    """Return whether a request has a signature of any version, which then has to be valid."""
    if request.header("authorization") is not None:
        return True
    return any(name in {"X-Amz-Signature", "X-Amz-Algorithm", "Signature"} for name, _ in request.parameters)


def verify_signature(request: SignedRequest, secret_of: SecretLookup, now_ms: int, service: str = "sqs") -> str:
    """Return the access key id that signed a request. Raises SqsError if its signature is not valid now.

    now_ms: wall-clock time. service: the one that the signature has to name.
    """
    claim = _claim(request)
    _check_scope(claim, service)
    _check_time(claim, datetime.fromtimestamp(now_ms // 1000, UTC))
    for name in (*_ALWAYS_SIGNED, *claim.signed_headers):
        is_needed = name == "host" or request.header(name) is not None
        if is_needed != (name in claim.signed_headers):
            raise _mismatch(f"'{name}' must be a header of the request, and signed.")
    secret = secret_of(claim.key_id)
    if secret is None:
        raise SqsError(SqsErrorKind.INVALID_CLIENT_TOKEN_ID, "The security token included in the request is invalid.")
    if not hmac.compare_digest(_signature(request, claim, secret).encode(), _bytes(claim.signature)):
        raise _mismatch(_MISMATCH)
    return claim.key_id


def _claim(request: SignedRequest) -> _Claim:
    header = request.header("authorization")
    if header is not None:
        return _claim_of_header(request, header)
    parameters = {name: _decoded(value) for name, value in request.parameters}
    if "X-Amz-Signature" not in parameters and "X-Amz-Algorithm" not in parameters:
        raise SqsError(SqsErrorKind.MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token")
    return _claim_of_query(parameters)


def _claim_of_header(request: SignedRequest, header: str) -> _Claim:
    algorithm, _, rest = header.partition(" ")
    if algorithm != _ALGORITHM:
        raise _incomplete(f"Unsupported AWS 'algorithm': '{algorithm[:50]}' (only {_ALGORITHM} for now).")
    parts = dict(_part(part) for part in rest.split(","))
    problems = [f"Authorization header requires '{name}' parameter." for name in _PARTS if not parts.get(name)]
    time = request.header("x-amz-date")
    if time is None:
        problems.append("Authorization header requires existence of a 'X-Amz-Date' header.")
    if problems or time is None:
        raise _incomplete(" ".join(problems))
    return _make_claim(parts, "", time, expires=_SKEW, left_out=None)


def _claim_of_query(parameters: Mapping[str, str]) -> _Claim:
    if parameters.get("X-Amz-Algorithm") != _ALGORITHM:
        raise _incomplete(f"AWS query-string parameters must have X-Amz-Algorithm={_ALGORITHM}.")
    missing = [name for name in _QUERY_PARTS if not parameters.get(name)]
    if missing:
        raise _incomplete(f"AWS query-string parameters must include {', '.join(missing)}.")
    expires = parameters["X-Amz-Expires"]
    if not re.fullmatch(r"[0-9]{1,6}", expires) or not 1 <= int(expires) <= _MAX_EXPIRES_S:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {_MAX_EXPIRES_S} seconds.")
    time = parameters["X-Amz-Date"]
    return _make_claim(parameters, "X-Amz-", time, expires=timedelta(seconds=int(expires)), left_out="X-Amz-Signature")


def _make_claim(
    parts: Mapping[str, str], prefix: str, time: str, *, expires: timedelta, left_out: str | None
) -> _Claim:
    key_id, *scope = parts[f"{prefix}Credential"].rsplit("/", 4)
    signed_headers = tuple(parts[f"{prefix}SignedHeaders"].split(";"))
    if len(scope) != 4:
        raise _incomplete("Credential must have five slash-delimited elements: key/date/region/service/aws4_request.")
    if len(signed_headers) > _MAX_SIGNED_HEADERS or sorted(set(signed_headers)) != list(signed_headers):
        raise _incomplete("SignedHeaders must be names of headers in lower case, in order.")
    return _Claim(
        key_id=key_id,
        scope=tuple(scope),
        signed_headers=signed_headers,
        signature=parts[f"{prefix}Signature"],
        time=time,
        signed_at=_parse_time(time),
        expires=expires,
        left_out=left_out,
    )


def _parse_time(text: str) -> datetime:
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(f"{text[:-1]}+00:00")
    except ValueError:
        pass
    raise _incomplete(f"Date must be in ISO-8601 'basic format'. Got '{text[:50]}'.")


def _check_scope(claim: _Claim, service: str) -> None:
    date, _, named_service, terminator = claim.scope
    if named_service != service:
        raise _mismatch(f"Credential should be scoped to correct service: '{service}'.")
    if terminator != _TERMINATOR:
        raise _mismatch(f"Credential should be scoped with a valid terminator: '{_TERMINATOR}', not '{terminator}'.")
    if date != claim.time[:8]:
        raise _mismatch(f"Date in Credential scope does not match YYYYMMDD from the date of the request: {claim.time}.")


def _check_time(claim: _Claim, now: datetime) -> None:
    if now - claim.expires <= claim.signed_at <= now + _SKEW:
        return
    time, shown = claim.time, now.strftime(_TIME_FORMAT)
    if claim.signed_at > now:
        latest = (now + _SKEW).strftime(_TIME_FORMAT)
        raise _mismatch(f"Signature not yet current: {time} is still later than {latest} ({shown} + 15 min.)")
    if claim.left_out is not None:
        raise SqsError(SqsErrorKind.REQUEST_EXPIRED, f"Request has expired: it is {shown}.")
    earliest = (now - _SKEW).strftime(_TIME_FORMAT)
    raise _mismatch(f"Signature expired: {time} is now earlier than {earliest} ({shown} - 15 min.)")


def _signature(request: SignedRequest, claim: _Claim, secret: str) -> str:
    canonical = canonical_request(request, claim.signed_headers, claim.left_out)
    lines = (_ALGORITHM, claim.time, "/".join(claim.scope), sha256(canonical).hexdigest())
    key = _bytes(f"AWS4{secret}")
    for part in claim.scope:
        key = hmac.digest(key, _bytes(part), "sha256")
    return hmac.digest(key, _bytes("\n".join(lines)), "sha256").hex()


def _part(text: str) -> tuple[str, str]:
    name, _, value = text.strip().partition("=")
    return name, value


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _mismatch(message: str) -> SqsError:
    return SqsError(SqsErrorKind.SIGNATURE_DOES_NOT_MATCH, message)


def _incomplete(message: str) -> SqsError:
    return SqsError(SqsErrorKind.INCOMPLETE_SIGNATURE, message)
