"""A file of access keys is read as it stands, or refused with the line that is wrong, and without a secret."""

from pathlib import Path

import pytest

from conveyor.http_api.requests.access_keys import AccessKey, read_access_keys
from conveyor.kernel.errors import SettingsError

SECRET = "s" * 20


def test_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# id secret user\n\nAKIA00000001 {SECRET} alice\n  AKIA00000002\t{SECRET}x bob\n")
    keys = read_access_keys(str(path))
    assert keys == {"AKIA00000001": AccessKey(SECRET, "alice"), "AKIA00000002": AccessKey(f"{SECRET}x", "bob")}
    assert read_access_keys("") == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"AKIA00000001 {SECRET}", "write an access key id, its secret access key and its user"),
        (f"short {SECRET} alice", "an access key id has 8 to 128 letters"),
        (f"AKIA0000000é {SECRET} alice", "an access key id has 8 to 128 letters"),
        ("AKIA00000001 short alice", "a secret access key has at least 20 characters"),
        (f"AKIA00000009 {SECRET} alice", "AKIA00000009 occurs twice"),
    ],
)
def test_wrong_line_is_named_without_its_secret(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"AKIA00000009 {SECRET} bob\n{line}\n")
    with pytest.raises(SettingsError, match=f"line 2: .*{problem}") as raised:
        read_access_keys(str(path))
    assert SECRET not in str(raised.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"sqs.keys_file .*none cannot be read: No such file"):
        read_access_keys(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="it is not text"):
        read_access_keys(str(tmp_path / "bytes"))
