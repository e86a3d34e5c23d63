"""Tokens that clients read from a file."""

from pathlib import Path

import pytest

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.brokers.raw_client import security_options, translated
from pyspark_conveyor.brokers.token_file import TOKEN_URL, TokenFile
from pyspark_conveyor.pipeline_errors import PipelineError
from tests.identity_provider import token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a token"


def test_token_is_read_each_time(file: Path) -> None:
    found = TokenFile(file.as_uri())
    for now_s in (1_000, 2_000):
        held = token(now_s * 1000)
        file.write_text(f"{held}\n")
        assert found.read() == found.kafka_python().token() == held
        assert found.oauth_cb("") == (held, now_s + 300)


@pytest.mark.parametrize("url", ["/path/token", "https://id.example/token", "file://host/token", "file:token", ""])
def test_other_url_is_refused(url: str) -> None:
    with pytest.raises(PipelineError, match="it takes the URL of a file, such as file:///path/token"):
        TokenFile(url)


@pytest.mark.parametrize("content", ["", "two words", "täuschend", "one\ntwo"])
def test_file_with_something_else_is_named(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(PipelineError, match=f"{file} .* holds no token: "):
        TokenFile(file.as_uri()).read()


@pytest.mark.parametrize("content", ["x", "a.b.c", "a.e30.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c"])
def test_file_without_a_token_is_named(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(PipelineError, match=f"{file} .* holds no token with an end"):
        TokenFile(file.as_uri()).oauth_cb("")


def test_missing_file_is_named(file: Path) -> None:
    with pytest.raises(PipelineError, match=f"{file} .* cannot be read"):
        TokenFile(file.as_uri()).read()


def test_each_client_gets_the_file_by_its_own_names(file: Path) -> None:
    brokers = Brokers(bootstrap_servers="host:9093", client={"sasl.mechanism": "OAUTHBEARER", TOKEN_URL: file.as_uri()})
    assert brokers.options == {
        "bootstrap.servers": "host:9093",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        f"kafka.{TOKEN_URL}": file.as_uri(),
    }
    assert set(brokers.confluent) == {"bootstrap.servers", "sasl.mechanism", "oauth_cb"}
    assert security_options(brokers.client) == brokers.client
    assert set(translated(brokers.client)) == {"sasl_mechanism", "sasl_oauth_token_provider"}
