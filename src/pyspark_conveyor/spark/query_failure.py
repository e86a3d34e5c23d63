"""Describes in one line why a streaming query failed."""

import re

_OWN = re.compile(r"(?:^|: )pyspark_conveyor\.[\w.]+Error: (.+)$", re.MULTILINE)


def own_message(text: str) -> str | None:
    """Return the message of the pipeline's own error in Spark's report; None if there is none."""
    found = _OWN.findall(text)
    return str(found[-1]) if found else None


def failure_line(error: BaseException) -> str:
    """Return the relevant line of Spark's long report: the Python exception, if there is one."""
    text = str(error)
    own = own_message(text)
    if own is not None:
        return own
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    by_user = re.search(r"\[USER_RAISED_EXCEPTION\] ([^\n]+)", text)
    if by_user:
        return by_user.group(1).removesuffix(" SQLSTATE: P0001")
    return ": ".join(raised[-1]) if raised else text.partition("\n")[0]
