"""`except Exception` is for the places where a task ends, or the code of a request is called: each of them once."""

import ast

from tests.tidy.sources import PRODUCT, modules, shown, tree

PLACES = {
    "src/conveyor/adapters/peers/peer_connection.py": "the handshake of a stranger",
    "src/conveyor/adapters/zookeeper/kazoo_bridge.py": "the end of a thread of kazoo",
    "src/conveyor/broker/remote/answering.py": "a call of another broker",
    "src/conveyor/kafka_api/wire/connection.py": "a request of Kafka",
    "src/conveyor/kernel/attempts.py": "background work, requests of HTTP, the check of a produced batch",
    "simulation/simulated_threads.py": "the end of a simulated thread's work",
    "simulation/story.py": "the end of a story",
}


def test_broad_excepts_are_where_tasks_end_and_requests_are_called() -> None:
    found = [
        shown(path)
        for path in modules(*PRODUCT)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type)
    ]
    assert sorted(found) == sorted(PLACES)


def is_broad(caught: ast.expr | None) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(name is None or (isinstance(name, ast.Name) and name.id == "Exception") for name in names)
