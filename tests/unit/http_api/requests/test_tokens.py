"""Bearer tokens are read from a file and compared with the token of a request."""

from pathlib import Path

import pytest

from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests.tokens import Tokens, read_tokens
from conveyor.kernel.errors import SettingsError


def request(authorization: str | None = None) -> Request:
    fields = {} if authorization is None else {b"authorization": authorization.encode()}
    return Request("GET", b"/", fields, is_http_11=True)


def written(folder: Path, text: str) -> str:
    path = folder / "tokens"
    path.write_text(text)
    return str(path)


def test_every_line_but_comments_is_a_token(tmp_path: Path) -> None:
    tokens = read_tokens(written(tmp_path, "# of the shop\n\n  first \nsecond\n"))
    assert tokens
    assert tokens.admit(request("Bearer first"))
    assert tokens.admit(request("bearer second"))


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer firs", "Bearer first second", "Basic first", "first"],
)
def test_request_without_a_token_is_not_admitted(authorization: str) -> None:
    tokens = Tokens(("first", "second"))
    assert not tokens.admit(request(authorization))
    assert not tokens.admit(request())


def test_every_client_is_admitted_without_tokens() -> None:
    assert not read_tokens("")
    assert read_tokens("").admit(request())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# none\n", "contains no token: write one per line"),
        ("two words\n", "a token consists of printable ASCII"),
        ("pässword\n", "ASCII"),
    ],
)
def test_file_without_valid_tokens_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        read_tokens(written(tmp_path, text))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--token-file .*absent cannot be read: No such file or directory"):
        read_tokens(str(tmp_path / "absent"))
