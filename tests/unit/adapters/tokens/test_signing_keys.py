"""A token counts if one of the published keys has signed it, by an algorithm that has a pair of keys."""

import hmac
import json
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from conveyor.adapters.tokens.signing_keys import ALGORITHMS, SigningKeySet
from conveyor.broker.clients.bearer_tokens import UnknownKey
from conveyor.broker.clients.token_claims import TokenRefused
from tests.identity_provider import claims, key_set, segment, sign, signing_key, token

NOW_MS = 1_700_000_000_000
KEY = signing_key("RS256")
KEYS = SigningKeySet(key_set(KEY))
CLAIMS = claims(NOW_MS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_right_signature_is_taken(algorithm: str) -> None:
    keys = SigningKeySet(key_set(signing_key(algorithm), signing_key("ES256", "other")))
    right = token(NOW_MS, algorithm)
    assert keys.claims(right) == CLAIMS
    signed, _, signature = right.rpartition(".")
    changed = ("A" if signature[4] != "A" else "B").join((signature[:4], signature[5:]))
    other = signed.partition(".")[0] + "." + segment({**CLAIMS, "sub": "admin"}).decode()
    for wrong in (f"{signed}.{changed}", f"{other}.{signature}", f"{signed}.", f"{signed}.AAAA"):
        with pytest.raises(TokenRefused):
            keys.claims(wrong)


def test_unsigned_token_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", ""):
        body = b".".join((segment({"alg": algorithm, "kid": "one"}), segment(CLAIMS))).decode()
        for wrong in (f"{body}.", body, f"{body}.{token(NOW_MS).rpartition('.')[2]}"):
            with pytest.raises(TokenRefused):
                KEYS.claims(wrong)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_public_key_is_no_secret(algorithm: str) -> None:
    secrets = [KEY.as_pem(private=False), json.dumps(KEY.as_dict(private=False)).encode(), key_set(KEY)]
    for secret in secrets:
        signed = segment({"alg": algorithm, "kid": "one"}) + b"." + segment(CLAIMS)
        signature = hmac.digest(secret, signed, f"sha{algorithm[2:]}")
        with pytest.raises(TokenRefused, match="header is not permitted"):
            KEYS.claims((signed + b"." + segment(signature)).decode())


def test_secrets_are_no_keys() -> None:
    secret: Any = OctKey.generate_key(256, {"kid": "one"})
    document = json.dumps({"keys": [secret.as_dict(private=True), KEY.as_dict(private=False, kid="two")]}).encode()
    with pytest.raises(TokenRefused, match="header is not permitted"):
        SigningKeySet(document).claims(sign({"alg": "HS256", "kid": "one"}, CLAIMS, "HS256", secret))
    with pytest.raises(ValueError, match="none of its 1 keys"):
        SigningKeySet(json.dumps({"keys": [secret.as_dict(private=True)]}).encode())


@pytest.mark.parametrize("kid", ["two", "", "../../../dev/null", "/etc/passwd", "' OR 1=1 --", "x" * 10_000, "a\nb"])
def test_name_of_a_key_is_only_compared(kid: str) -> None:
    with pytest.raises(UnknownKey) as refusal:
        KEYS.claims(sign({"alg": "RS256", "kid": kid}, CLAIMS, "RS256", KEY))
    assert len(str(refusal.value)) < 120
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RS256", "kid": "one", "crit": ["exp"], "exp": 1},
        {"alg": "RS256", "kid": "one", "crit": ["b64"], "b64": False},
        {"alg": "RS256", "kid": "one", "crit": []},
        {"alg": "RS256", "kid": "one", "crit": None},
        {"alg": "RS256", "kid": 7},
        {"alg": ["RS256"], "kid": "one"},
        {"alg": None, "kid": "one"},
        {"kid": "one"},
        {"alg": "ES256", "kid": "one"},
        {"alg": "RS1", "kid": "one"},
        ["RS256"],
        "RS256",
        b"{",
        b"\xff\xfe",
        b'{"alg":"RS256","kid":' + b"[" * 4_000 + b"]" * 4_000 + b"}",
    ],
)
def test_header_is_refused(header: object) -> None:
    with pytest.raises(TokenRefused):
        KEYS.claims(sign(header, CLAIMS, "RS256", KEY))


@pytest.mark.parametrize("payload", [b"", b"7", b"[]", b"null", b"{", b'{"a":' + b"[" * 5_000, b'"\xff"', b"\xff"])
def test_claims_are_an_object(payload: bytes) -> None:
    with pytest.raises(TokenRefused):
        KEYS.claims(sign({"alg": "RS256", "kid": "one"}, payload, "RS256", KEY))


@pytest.mark.parametrize(
    "text", ["", ".", "..", "...", "a.b", "a.b.c.d", "é.b.c", "a b.c.d", "\ud800.b.c", "." * 16_000]
)
def test_malformed_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        KEYS.claims(text)


def test_keys_in_the_token_are_not_used() -> None:
    own = signing_key("RS256", "own")
    for more in ({"jwk": own.as_dict(private=False)}, {"jku": "http://127.0.0.1:1/keys"}, {"x5u": "file:///keys"}):
        with pytest.raises(TokenRefused, match="signature is wrong"):
            KEYS.claims(sign({"alg": "RS256", "kid": "one", **more}, CLAIMS, "RS256", own))


def test_token_without_the_name_of_a_key_needs_the_only_one_that_fits() -> None:
    unnamed = sign({"alg": "RS256"}, CLAIMS, "RS256", KEY)
    assert SigningKeySet(key_set(KEY, signing_key("ES256"))).claims(unnamed) == CLAIMS
    with pytest.raises(TokenRefused, match="names no key"):
        SigningKeySet(key_set(KEY, signing_key("RS256", "two"))).claims(unnamed)


def test_key_for_one_algorithm_is_not_used_for_another() -> None:
    keys = SigningKeySet(key_set(KEY, alg="RS512"))
    with pytest.raises(TokenRefused, match="for another algorithm"):
        keys.claims(token(NOW_MS))
    curves = SigningKeySet(key_set(signing_key("ES384")))
    with pytest.raises(TokenRefused, match="for another algorithm"):
        curves.claims(sign({"alg": "ES256", "kid": "one"}, CLAIMS, "ES384", signing_key("ES384")))


@pytest.mark.parametrize(
    "more", [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "RSA-OAEP"}, {"n": "!"}, {"kty": 7}]
)
def test_keys_for_other_purposes_are_left_out(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="none of its 1 keys"):
        SigningKeySet(key_set(KEY, **more))


def test_short_keys_are_left_out() -> None:
    with pytest.warns(UserWarning, match="size"):
        short: Any = RSAKey.generate_key(1024, {"kid": "short"})
    with pytest.raises(ValueError, match="none of its 1 keys"), pytest.warns(UserWarning, match="size"):
        SigningKeySet(key_set(short))


@pytest.mark.parametrize(
    "document", [b"", b"{}", b"[]", b"7", b'{"keys":7}', b'{"keys":null}', b'{"keys":[]}', b"\xff"]
)
def test_document_without_keys_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match="keys"):
        SigningKeySet(document)


def test_unusable_keys_do_not_spoil_the_others() -> None:
    document = json.loads(key_set(KEY))
    document["keys"] += [7, None, {}, {"kty": "EC"}, {"kty": "OKP", "crv": "X25519", "x": "AAAA"}, {"kty": "new"}]
    assert SigningKeySet(json.dumps(document).encode()).claims(token(NOW_MS)) == CLAIMS


def test_example_of_rfc_7515_is_verified() -> None:
    """Appendix A.3: ES256."""
    key = {
        "kty": "EC",
        "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    }
    example = (
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0"
        "cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    )
    found = SigningKeySet(json.dumps({"keys": [key]}).encode()).claims(example)
    assert found == {"iss": "joe", "exp": 1_300_819_380, "http://example.com/is_root": True}
