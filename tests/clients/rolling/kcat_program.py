"""kcat with the arguments of the other programs, as far as it can do what they do."""

import json
from collections.abc import Mapping

from tests.clients.kcat import connection
from tests.clients.programs import Line, Program, Running

_MERGED = ["sh", "-c", 'exec kcat "$@" 2>&1', "kcat"]
"""kcat prints its assignment among its errors."""


class KcatProgram(Program):
    """`produce` and `member`. The value of a record is the line of JSON that the producer was given.

    A member commits by itself and does not say so.
    """

    def __init__(self) -> None:
        super().__init__(_MERGED)

    def start(self, *arguments: object) -> Running:
        name, bootstrap, topic, *_ = map(str, arguments)
        if name == "produce":
            return _running(bootstrap, {"enable.idempotence": "true"}, ["-P", "-t", topic])
        session_ms = str(arguments[-1])
        settings = {
            "auto.offset.reset": "error",
            "auto.commit.interval.ms": "100",
            "session.timeout.ms": session_ms,
            "partition.assignment.strategy": "range",
        }
        return _Member(bootstrap, settings, ["-u", "-f", "%p %o %s\\n", "-G", topic, topic])


class _Member(Running):
    def __init__(self, bootstrap: str, settings: Mapping[str, str], arguments: list[str]) -> None:
        super().__init__(_command(bootstrap, settings, arguments), _line_of)

    def finish(self) -> list[Line]:
        """kcat takes no notice of its input here: it ends on a signal."""
        self._process.terminate()
        return super().finish()


def _running(bootstrap: str, settings: Mapping[str, str], arguments: list[str]) -> Running:
    return Running(_command(bootstrap, settings, arguments), lambda text: {"printed": text})


def _command(bootstrap: str, settings: Mapping[str, str], arguments: list[str]) -> list[str]:
    options = connection(bootstrap) + [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    # With -E it goes on while it is connected to no broker.
    return [*_MERGED, "-E", *options, *arguments]


def _line_of(text: str) -> Line:
    partition, _, rest = text.partition(" ")
    offset, _, value = rest.partition(" ")
    if " rebalanced" in text:
        return {"assigned": []}
    if not (partition.isdecimal() and offset.isdecimal()):
        return {"printed": text}
    return {"partition": int(partition), "offset": int(offset), "value": json.loads(value)["value"]}
