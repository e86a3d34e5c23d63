"""The messages between a worker and its supervisor while the worker starts.

The supervisor writes the settings to the worker's standard input: a JSON object by `section.name`. The worker answers
with one line of JSON on its standard output.
"""

import msgspec


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """The worker accepts requests. kafka, http: the addresses at which it listens, as its settings give them."""

    kafka: str
    http: str


class WorkerRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker cannot start, and why."""

    reason: str


WorkerReport = WorkerReady | WorkerRefused

_decoder: msgspec.json.Decoder[WorkerReport] = msgspec.json.Decoder(WorkerReport)


def encode_report(report: WorkerReport) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def decode_report(line: bytes) -> WorkerReport:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(line)


def encode_settings(settings: dict[str, object]) -> bytes:
    return msgspec.json.encode(settings)


def decode_settings(content: bytes) -> dict[str, object]:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(content, type=dict[str, object])
