"""The claims of a token say who the user is, until when, and for whom the token is."""

from typing import Any

import pytest

from conveyor.broker.clients.token_claims import SKEW_MS, TokenRefused, VerifiedToken, verified_token
from conveyor.settings.sasl_settings import SaslSettings
from tests.identity_provider import AUDIENCE, ISSUER, claims

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000
SKEW = SKEW_MS // 1000
SETTINGS = SaslSettings(jwks_file="keys", oauth_issuer=ISSUER, oauth_audience=f"other, {AUDIENCE}")


def verified(settings: SaslSettings = SETTINGS, now_ms: int = NOW_MS, **changed: Any) -> VerifiedToken:
    return verified_token(claims(NOW_MS, **changed), settings, now_ms)


def test_user_and_end_are_in_the_claims() -> None:
    found = verified()
    assert found == VerifiedToken("alice", NOW_MS + 300_000 + SKEW_MS)
    assert found.rest_ms(NOW_MS) == 300_000 + SKEW_MS
    assert found.rest_ms(found.ends_ms) == 1


def test_token_ends_after_the_tolerance() -> None:
    end_ms = NOW_MS + 300_000 + SKEW_MS
    assert verified(now_ms=end_ms - 1).rest_ms(end_ms - 1) == 1
    with pytest.raises(TokenRefused, match="has expired"):
        verified(now_ms=end_ms)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_token_begins_within_the_tolerance(claim: str) -> None:
    assert verified(SETTINGS, NOW_MS, **{claim: NOW + SKEW}).user == "alice"
    with pytest.raises(TokenRefused, match=f"of the future .{claim}"):
        verified(SETTINGS, NOW_MS, **{claim: NOW + SKEW + 1})


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("exp", None),
        ("exp", "soon"),
        ("exp", True),
        ("exp", [NOW + 300]),
        ("exp", float("inf")),
        ("exp", -1),
        ("exp", 0),
        ("nbf", "x"),
        ("iat", float("nan")),
        ("iss", None),
        ("iss", "https://evil.example"),
        ("iss", [ISSUER]),
        ("aud", None),
        ("aud", "queues"),
        ("aud", []),
        ("aud", ["queues", 7]),
        ("aud", {AUDIENCE: AUDIENCE}),
        ("aud", "*"),
        ("sub", None),
        ("sub", ""),
        ("sub", 7),
        ("sub", "a\nb"),
        ("sub", "\ud800"),
        ("sub", "a" * 256),
        ("sub", "ANONYMOUS"),
        ("sub", ["alice"]),
    ],
)
def test_token_is_refused_for_one_claim(claim: str, value: object) -> None:
    with pytest.raises(TokenRefused):
        verified(SETTINGS, NOW_MS, **{claim: value})


@pytest.mark.parametrize("audience", [AUDIENCE, "other", ["queues", AUDIENCE]])
def test_one_audience_is_enough(audience: object) -> None:
    assert verified(aud=audience).user == "alice"


def test_any_audience_and_issuer_if_the_settings_say_so() -> None:
    lax = SaslSettings(jwks_file="keys", oauth_issuer="*", oauth_audience="*")
    for audience in (None, "queues", 7):
        assert verified(lax, aud=audience, iss="https://evil.example").user == "alice"


@pytest.mark.parametrize("setting", ["", ",", " , "])
def test_no_audience_in_the_settings_permits_none(setting: str) -> None:
    with pytest.raises(TokenRefused, match="for others"):
        verified(SaslSettings(jwks_file="keys", oauth_issuer="*", oauth_audience=setting), aud="")


def test_another_claim_may_be_the_name_of_the_user() -> None:
    settings = SaslSettings(jwks_file="keys", oauth_issuer="*", oauth_audience="*", oauth_principal_claim="client_id")
    assert verified(settings, client_id="etl").user == "etl"
    with pytest.raises(TokenRefused, match="without the name of a user, client_id=None"):
        verified(settings)


def test_end_may_be_far_away() -> None:
    assert verified(exp=1e11).rest_ms(NOW_MS) > 1 << 45


@pytest.mark.parametrize("value", [1e300, 10**400, -1e300, float("nan")])
def test_times_that_are_no_dates_are_refused(value: float) -> None:
    for claim in ("exp", "nbf", "iat"):
        with pytest.raises(TokenRefused, match="no date"):
            verified(SETTINGS, NOW_MS, **{claim: value})


def test_tokens_that_are_bound_to_a_key_are_refused() -> None:
    with pytest.raises(TokenRefused, match="cnf"):
        verified(cnf={"jkt": "thumbprint"})
