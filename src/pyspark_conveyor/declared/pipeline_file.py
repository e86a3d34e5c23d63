"""Reads a pipeline from a TOML file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pyspark_conveyor.declared.pipeline_spec import (
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    StepSpec,
    TableSpec,
    check_spec,
)
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.connectors import Connector

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "sources": SourceSpec,
    "tables": TableSpec,
    "steps": StepSpec,
    "sinks": SinkSpec,
}


def read_pipeline(
    file: Path,
    bootstrap: str | None = None,
    connector: Connector | None = None,
    client: Mapping[str, str] | None = None,
) -> PipelineSpec:
    """Return the pipeline of a file, checked as far as it goes without a broker. Raises PipelineError.

    Paths in the file are relative to its directory. bootstrap, connector, client: take the place of the file's.
    """
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise PipelineError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file} is not TOML: {error}") from error
    try:
        if connector is not None:
            document["connector"] = connector.value
        if client:
            document["client"] = dict(client)
        spec = _to_spec(document, bootstrap)
        check_spec(spec)
    except PipelineError as error:
        raise PipelineError(f"{file}: {error}") from error
    return _with_paths(spec, file.resolve().parent)


def _to_spec(document: dict[str, Any], bootstrap: str | None) -> PipelineSpec:
    sections = {name: _section(name, document.get(name, {}), kind) for name, kind in _SECTIONS.items()}
    address = bootstrap or document.get("bootstrap", _DEFAULT_BOOTSTRAP)
    return _converted("the pipeline", document | sections | {"bootstrap": address}, PipelineSpec)


def _section(name: str, entries: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    if not isinstance(entries, dict):
        raise PipelineError(f"{name} is not a section: write [{name}.NAME]")
    return {key: msgspec.to_builtins(_converted(f"{name}.{key}", entry, kind)) for key, entry in entries.items()}


def _converted(place: str, value: Any, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(kind))
        raise PipelineError(f"{place}: {error}; its keys are {known}") from error


def _with_paths(spec: PipelineSpec, folder: Path) -> PipelineSpec:
    """Return the pipeline with absolute paths. An address with a scheme stays as it is."""

    def absolute(path: str) -> str:
        return path if not path or "://" in path else str((folder / Path(path).expanduser()).resolve())

    replace = msgspec.structs.replace
    return replace(
        spec,
        checkpoint=absolute(spec.checkpoint),
        tables={name: replace(table, path=absolute(table.path)) for name, table in spec.tables.items()},
        sinks={
            name: replace(sink, table=absolute(sink.table), lake=absolute(sink.lake))
            for name, sink in spec.sinks.items()
        },
    )
