"""The examples of docs/rest.md do what the page says, one after the other; and the page has every endpoint."""

import json
import re
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from conveyor.http_api.application import ENDPOINTS
from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients.rest_client import Rest

PAGE = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
STRICT = 'set -e\ncurl() { command curl -sS --fail-with-body "$@"; echo; }\n'


def examples(language: str, broker: Broker) -> list[str]:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [each.replace("http://127.0.0.1:8080", broker.http_url) for each in blocks]


def test_every_example_in_python_runs(broker: Broker) -> None:
    printed, names = StringIO(), dict[str, object]()
    with redirect_stdout(printed):
        for example in examples("python", broker):
            exec(example, names)
    assert printed.getvalue() == "Dear Ada, ... 1\nreceipt for Dear Bob, ...\n"


def test_every_example_in_the_shell_runs(broker: Broker) -> None:
    script = STRICT + "".join(examples("sh", broker))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    rest = Rest(broker)
    assert rest.get("/subscriptions/billing").json["acked"] == 1
    rest.close()


def test_every_example_in_the_shell_runs_by_tls_with_a_token(certificates: Certificates, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token\n")
    settings = {
        **certificates.settings("127.0.0.1:0"),
        "network.http": "https://127.0.0.1:0",
        "network.token_file": str(tokens),
    }
    with Broker(memory=True, settings=settings) as broker:
        login = f"curl --cacert {certificates.authority} -H 'Authorization: Bearer a-token'"
        last = f"{login} {broker.http_url}/subscriptions/billing\n"
        script = STRICT + re.sub(r"\bcurl(?= )", login, "".join(examples("sh", broker))) + last
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["acked"] == 1


def test_every_endpoint_is_on_the_page() -> None:
    shown = set(re.findall(r"`((?:GET|POST|PATCH|DELETE) /[^`]*)`", PAGE))
    short = {"GET", "PATCH", "DELETE"}
    missing = {
        f"{each.method} {each.path}"
        for each in ENDPOINTS
        if not (each.path == "/topics/{topic}/subscriptions/{subscription}" and each.method in short)
    } - shown
    assert not missing
    assert not shown - {f"{each.method} {each.path}" for each in ENDPOINTS}
