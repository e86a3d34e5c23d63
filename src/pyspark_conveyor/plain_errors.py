"""Lets Spark report the errors of the data source by their messages alone.

A worker of PySpark writes the traceback before the message, unless SPARK_HIDE_TRACEBACK is set. A worker that reports
an error ends, so the variable hides no traceback of other code.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from pyspark_conveyor.pipeline_errors import PipelineError

Kind = TypeVar("Kind", bound=type)


def with_plain_errors(kind: Kind) -> Kind:
    """Decorate a class whose public methods Spark calls in its workers."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, plain_errors(method))
    return kind


def plain_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate one method; see `with_plain_errors`."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _without_traceback():
            result = method(*arguments, **named)
        return _passed_on(result) if isinstance(result, Iterator) else result

    return call


def _passed_on(items: Iterator[Any]) -> Iterator[Any]:
    with _without_traceback():
        yield from items


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except PipelineError:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
