"""The public keys of an identity provider (JWKS), and the check of a token's signature by one of them.

Only signatures with a pair of keys are taken, so nobody who knows the public keys can sign. A key is chosen by its name
(`kid`) among the keys of the document alone: nothing that a token contains is opened or fetched. Source: RFC 7515, RFC
7517, RFC 8725.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from conveyor.broker.clients.bearer_tokens import UnknownKey
from conveyor.broker.clients.token_claims import TokenRefused

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
    *("EdDSA", "Ed25519"),
)
MIN_RSA_BITS = 2_048

_PublicKey = RSAKey | ECKey | OKPKey
_SIGNING_CURVES = ("Ed25519", "Ed448")
_SHOWN = 64
_MALFORMED = (JoseError, msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError)


class _Header(msgspec.Struct):
    """The fields of a token's header that count."""

    alg: str
    kid: str | None = None
    crit: Any = msgspec.UNSET


class SigningKeySet:
    """The keys of a document. Those of unknown kinds, or for other purposes, are left out.

    Raises ValueError if it is no key set, or no key is left.
    """

    def __init__(self, document: bytes) -> None:
        try:
            found = list(msgspec.json.decode(document)["keys"])
        except _MALFORMED as error:
            raise ValueError(f"it is no set of keys (JWKS): {error}") from error
        self._keys = [key for key in map(_public_key, found) if key is not None]
        if not self._keys:
            raise ValueError(f"none of its {len(found)} keys can check a signature by {', '.join(ALGORITHMS)}")

    def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token with a right signature. Raises TokenRefused, UnknownKey."""
        try:
            signed, _, signature = token.encode("ascii").rpartition(b".")
            protected, payload = signed.split(b".")
            header = msgspec.json.decode(urlsafe_b64decode(protected), type=_Header)
            signature = urlsafe_b64decode(signature)
        except _MALFORMED as error:
            raise TokenRefused("a token that is malformed") from error
        if header.alg not in ALGORITHMS or header.crit is not msgspec.UNSET:
            raise TokenRefused(f"a token whose header is not permitted, alg={header.alg[:_SHOWN]!r}")
        key = self._key(header)
        try:
            is_right = JWSRegistry.algorithms[header.alg].verify(signed, signature, key)
            claims = msgspec.json.decode(urlsafe_b64decode(payload))
        except _MALFORMED as error:
            raise TokenRefused("a token that is malformed") from error
        if not is_right or not isinstance(claims, dict):
            raise TokenRefused("a token whose signature is wrong")
        return claims

    def _key(self, header: _Header) -> _PublicKey:
        """Return the key that a header names, or the only one that fits. Raises TokenRefused, UnknownKey."""
        named = [key for key in self._keys if header.kid in (None, key.kid)]
        if not named:
            raise UnknownKey(f"a token of an unknown key, kid={str(header.kid)[:_SHOWN]!r}")
        fitting = [key for key in named if _fits(key, header.alg)]
        if not fitting or (header.kid is None and len(fitting) > 1):
            raise TokenRefused("a token that names no key, or one for another algorithm")
        return fitting[0]


def _fits(key: _PublicKey, algorithm: str) -> bool:
    """Return whether a key is for an algorithm."""
    try:
        JWSRegistry.algorithms[algorithm].check_key(key)
    except JoseError:
        return False
    return key.alg in (None, algorithm)


def _public_key(given: Any) -> _PublicKey | None:
    """Return a key that can check signatures; None for another one, or a malformed one."""
    try:
        return _imported(given)
    except _MALFORMED:
        return None


def _imported(given: Any) -> _PublicKey | None:
    if given["kty"] not in (RSAKey.key_type, ECKey.key_type, OKPKey.key_type) or given.get("use", "sig") != "sig":
        return None
    if given.get("alg", ALGORITHMS[0]) not in ALGORITHMS or "verify" not in given.get("key_ops", ("verify",)):
        return None
    key = JWKRegistry.import_key(given)
    if isinstance(key, RSAKey):
        return key if key.public_key.key_size >= MIN_RSA_BITS else None
    if isinstance(key, OKPKey):
        return key if key.curve_name in _SIGNING_CURVES else None
    return key if isinstance(key, ECKey) else None
