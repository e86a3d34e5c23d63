"""Why a streaming query failed, in one line."""

import re


def failure_line(error: BaseException) -> str:
    """Return the relevant line of Spark's long report: the Python exception, if there is one."""
    text = str(error)
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    own = [message for name, message in raised if name.startswith("conveyor.pipeline.")]
    if own:
        return str(own[-1])
    by_user = re.search(r"\[USER_RAISED_EXCEPTION\] ([^\n]+)", text)
    if by_user:
        return by_user.group(1).removesuffix(" SQLSTATE: P0001")
    return ": ".join(raised[-1]) if raised else text.partition("\n")[0]
