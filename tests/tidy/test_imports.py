"""No module imports itself by way of others, wherever the statements stand; import-linter checks the layers."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.imports import Graph, cycles, import_graph, import_statements, module_name
from tests.tidy.sources import PRODUCT, ROOT, modules, shown, tree

APPLICATION = "conveyor.http_api.application"
ROOMS = {
    "conveyor.kafka_api.wire": ("conveyor.kafka_api.apis", "conveyor.kafka_api.registry"),
    "conveyor.kafka_api.apis": ("conveyor.kafka_api.registry",),
    "conveyor.http_api.requests": ("conveyor.http_api.rest", "conveyor.http_api.ops", APPLICATION),
    "conveyor.http.engine": ("conveyor.http.endpoints",),
    "conveyor.http_api.rest": ("conveyor.http_api.ops", APPLICATION),
    "conveyor.http_api.ops": ("conveyor.http_api.rest", APPLICATION),
}
"""The rooms of the doors, and what stands above or beside each, of which it imports nothing."""

BROKER_ROOMS = (
    "metadata", "partitions", "replicas", "remote", "topics", "fetch", "produce", "clients", "markers",
    "coordinators", "schedules", "queues", "transaction_requests", "liveness",
)  # fmt: skip
"""The rooms of the broker, lowest first: a room imports only rooms before it."""

ROOM_CYCLES: dict[str, set[str]] = {}
"""Imports between rooms of a package that close a cycle. This list may only shrink."""

COMPUTED = re.compile(r"\bimport_module\b|\b__import__\b")

IMPORT_LATE = {
    "conveyor.http.engine.http_connection": "WebSocket, with wsproto, when a request first upgrades its connection",
    "conveyor.server.http_listener": "the HTTP door, when somebody first connects",
    "conveyor.server.metadata_stores": "the store on ZooKeeper, with kazoo, when the settings name one; the store of a"
    " supervisor, when this process is a worker",
    "conveyor.server.server": "the kernel's own queue of syncs, which needs Linux, when the broker is ready; the links"
    " to other brokers, when the metadata is shared with them; TLS and the names in certificates, for clients with it;"
    " the keys of bearer tokens, when the settings name them",
}
"""Modules of a broker that import others of its modules inside functions, and what. This list may only shrink."""

CLIENTS_AND_TESTS = ("conveyor.cli", "conveyor.testing")
"""What a command or a test run does not use is not loaded: these may import late."""


def is_in(module: str, *rooms: str) -> bool:
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


def room_graph() -> Graph:
    """The rooms that each room of the same package imports; modules beside the rooms belong to none."""
    graph: Graph = {}
    for module, names in import_graph().items():
        room = room_of(module)
        if room:
            package = room.rpartition(".")[0]
            imported = {other for name in names if (other := room_of(name)).rpartition(".")[0] == package}
            graph.setdefault(room, set()).update(imported - {room, ""})
    return graph


def room_of(module: str) -> str:
    """`conveyor.log.segments` for the modules in that folder, `simulation.cluster` for those of a smaller package,
    nothing for a module outside of rooms.
    """
    parts = module.split(".")
    depth = 3 if parts[0] == "conveyor" else 2
    is_room = len(parts) >= depth and any((ROOT / each).joinpath(*parts[:depth]).is_dir() for each in ("src", ""))
    return ".".join(parts[:depth]) if is_room else ""


def late_imports(module: ast.Module) -> Iterator[str]:
    """What functions import."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (name for name, _ in import_statements(node))


def test_no_modules_import_each_other() -> None:
    assert not cycles(import_graph())


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert cycles(graph) == [["b", "c"]]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_nothing_above_it(room: str) -> None:
    pairs = [(module, name) for module, names in import_graph().items() if is_in(module, room) for name in names]
    assert pairs
    assert not [pair for pair in pairs if is_in(pair[1], *ROOMS[room])]


def test_no_rooms_of_a_package_import_each_other() -> None:
    graph = room_graph()
    assert not cycles({room: names - ROOM_CYCLES.get(room, set()) for room, names in graph.items()})


def test_broker_rooms_stand_in_their_order() -> None:
    graph = {room.rpartition(".")[2]: names for room, names in room_graph().items() if is_in(room, "conveyor.broker")}
    assert set(BROKER_ROOMS) == graph.keys()
    for index, room in enumerate(BROKER_ROOMS):
        allowed = {f"conveyor.broker.{lower}" for lower in BROKER_ROOMS[:index]}
        assert not graph[room] - allowed - ROOM_CYCLES.get(f"conveyor.broker.{room}", set())


def test_only_doors_that_are_named_are_loaded_late() -> None:
    paths = {module_name(path): path for path in modules("src/conveyor")}
    late = {name for name, path in paths.items() if any(is_in(each, "conveyor") for each in late_imports(tree(path)))}
    assert {name for name in late if not is_in(name, *CLIENTS_AND_TESTS)} == IMPORT_LATE.keys()


def test_no_module_is_imported_by_a_computed_name() -> None:
    """Such an import hides from these tests, from mypy and from import-linter."""
    assert not [shown(path) for path in modules(*PRODUCT) if COMPUTED.search(path.read_text())]
