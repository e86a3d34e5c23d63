"""The golden files are what the Java client of pom.xml writes: a few are made anew."""

from tests.vectors.capture.messages import captured, file_name, text_of
from tests.vectors.recorded import FOLDER


def test_golden_files_are_what_the_java_client_writes() -> None:
    keys = (0, 1, 3, 16, 68)
    lines = captured(keys)
    for key in keys:
        made = text_of(line for line in lines if line["key"] == key)
        assert made == (FOLDER / file_name(key)).read_text(), file_name(key)
