"""The example on the page about SQS runs as it stands there, and the page names each operation that is served."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from conveyor.http_api.sqs.actions.action_table import ACTIONS
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS

PAGE = (Path(__file__).parents[3] / "docs" / "sqs.md").read_text()


def test_example_runs() -> None:
    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    printed, names = StringIO(), dict[str, Any]()
    with redirect_stdout(printed):
        exec(example, names)
    names["sqs"].close()
    assert printed.getvalue() == "one book\n"


def test_page_names_all_operations() -> None:
    assert ACTIONS.keys() == OPERATIONS.keys()
    assert {name for name in ACTIONS if name.removesuffix("Batch") not in PAGE} == set()
