"""Passes the web framework's messages to the broker's log. A bad request is one line instead of a traceback."""

import logging
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of `aiohttp.web`."""

    def __init__(self) -> None:
        super().__init__(log)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, HttpProcessingError):
            reason = error.message.partition("\n")[0]
            log.debug("request refused peer=%s reason=%s", args[0] if args else "?", reason)
        else:
            super().log(level, msg, *args, **kwargs)
