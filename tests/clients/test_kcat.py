"""kcat, where it is installed; CI installs it."""

import os
import shutil
import subprocess

import pytest

from conveyor.testing import Broker
from tests.clients.records import CODECS, COUNT

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(
    KCAT is None and not os.environ.get("CI"), reason="kcat is not installed: apt-get install kcat"
)


def kcat(broker: Broker, *arguments: str, given: bytes = b"") -> bytes:
    assert KCAT is not None, "CI has to install kcat"
    command = [KCAT, "-b", broker.bootstrap_servers, *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=True, timeout=120).stdout


def test_records_come_back_as_they_were_sent(broker: Broker, topic: str) -> None:
    share = COUNT // len(CODECS)
    for number, codec in enumerate(CODECS):
        lines = b"".join(b"key-%d:value-%d\n" % (each, each) for each in range(number * share, (number + 1) * share))
        kcat(broker, "-P", "-t", topic, "-K", ":", "-z", codec, "-H", "from=kcat", given=lines)
    read = kcat(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s:%h\n")
    expected = sorted(b"key-%d:value-%d:from=kcat" % (each, each) for each in range(COUNT))
    assert sorted(read.splitlines()) == expected


def test_metadata_is_listed(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, given=b"x\n")
    assert f'topic "{topic}" with 1 partitions' in kcat(broker, "-L").decode()
