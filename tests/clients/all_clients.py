"""The clients that every conformance scenario is played with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.clients.programs import Program
from tests.clients.toolchains import go_program, java_program, javascript_program, python_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client's program, and what the client itself cannot do.

    protocols: eager and cooperative assignors of the classic group protocol; consumer is that of KIP-848.
    administers_acls: its program does. is_told: whether a user of the client can find out that it is throttled.
    follows_leaders: however often they move. logs_in_again: on the same connection, before its session ends (KIP-368).
    """

    name: str
    program: Callable[[], Program]
    protocols: tuple[str, ...] = ("eager", "cooperative", "consumer")
    unknown_topic_steps: tuple[str, ...] = ()
    unknown_group_steps: tuple[str, ...] = ()
    administers_acls: bool = False
    is_told: bool = True
    follows_leaders: bool = True
    logs_in_again: bool = True


CLIENTS = (
    Client(
        name="confluent-kafka",
        program=partial(python_program, "confluent"),
        unknown_group_steps=("delete offsets",),
        administers_acls=True,
    ),
    Client(
        name="aiokafka",
        program=partial(python_program, "aiokafka"),
        protocols=("eager",),
        unknown_group_steps=("alter offsets", "delete offsets", "delete", "delete again"),
        is_told=False,
        logs_in_again=False,
    ),
    Client(
        name="kafka-python",
        program=partial(python_program, "kafka_python"),
        protocols=("eager", "cooperative"),
        administers_acls=True,
    ),
    Client(
        name="kafkajs",
        program=partial(javascript_program, "kafkajs.js"),
        protocols=("eager",),
        unknown_topic_steps=("delete records beyond",),
        unknown_group_steps=("delete offsets",),
        administers_acls=True,
    ),
    Client(
        name="platformatic",
        program=partial(javascript_program, "platformatic.js"),
        # It asks for the leaders once per request; then it repeats the request to the same one.
        follows_leaders=False,
    ),
    Client(name="franz-go", program=go_program),
    Client(name="java", program=java_program),
)
