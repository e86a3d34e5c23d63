"""Where the keys of tokens are, and for whom tokens have to be."""

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.settings.tree import Settings, from_sources


def settings(**sasl: object) -> Settings:
    return from_sources({f"sasl.{name}": value for name, value in sasl.items()})


@pytest.mark.parametrize(
    "url",
    [
        "https://id.example/keys",
        "https://10.0.0.1:8443/keys?tenant=1",
        "http://127.0.0.1:8000/keys",
        "http://127.9.9.9/",
        "http://[::1]:80/keys",
        "http://localhost/keys",
    ],
)
def test_keys_come_by_https_or_from_this_machine(url: str) -> None:
    assert settings(jwks_url=url, oauth_audience="kafka", oauth_issuer="*").sasl.has_keys


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/keys.json",
        "ftp://id.example/keys",
        "http://id.example/keys",
        "http://10.0.0.1/keys",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1.evil.example/keys",
        "http://localhost.evil.example/keys",
        "http://127.0.0.1@evil.example/keys",
        "https://user:password@id.example/keys",
        "http://0x7f000001/",
        "https:///keys",
        "https://id.example:port/keys",
        "https://id.example:0/keys",
        "https://[::1/keys",
        "https://id.example/keys#one",
        "https://id.example/sch\u00f6n",
        "//id.example/keys",
        "keys.json",
    ],
)
def test_keys_come_from_nowhere_else(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sasl\.jwks_url"):
        settings(jwks_url=url, oauth_audience="kafka", oauth_issuer="*")


@pytest.mark.parametrize("audience", ["", ",", " , "])
def test_audience_has_to_be_named(audience: str) -> None:
    with pytest.raises(SettingsError, match=r"sasl\.oauth_audience is not set"):
        settings(jwks_file="keys.json", oauth_audience=audience)


def test_issuer_has_to_be_named() -> None:
    """Providers sign the tokens of all their customers by the same keys."""
    with pytest.raises(SettingsError, match=r"sasl\.oauth_issuer is not set"):
        settings(jwks_file="keys.json", oauth_audience="kafka")


def test_audiences_are_a_list() -> None:
    keys = {"jwks_file": "keys.json", "oauth_issuer": "*"}
    assert settings(**keys, oauth_audience="kafka, queues,").sasl.audiences == {"kafka", "queues"}
    assert settings(**keys, oauth_audience="*").sasl.audiences == {"*"}


def test_file_and_url_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match="exclude each other"):
        settings(jwks_file="keys.json", jwks_url="https://id.example/keys", oauth_audience="*")


def test_tokens_need_keys() -> None:
    with pytest.raises(SettingsError, match="nothing names the keys of tokens"):
        from_sources({"network.sasl_mechanisms": ",".join(MECHANISMS)})
    with pytest.raises(SettingsError, match=r"sasl\.oauth_principal_claim"):
        settings(oauth_principal_claim="")
