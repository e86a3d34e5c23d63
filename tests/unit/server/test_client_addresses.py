"""ACLs count for the address of a client, whichever socket it has dialled."""

import asyncio

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.acl import ANY, ANY_USER, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.server.server import Server
from tests.callers import CALLER
from tests.unit.kafka_api.requests import METADATA, framed, request, response
from tests.unit.server.memory_server import running, server

HOST = "127.0.0.1"
EVERYWHERE = "[::]:0"


async def test_a_client_by_ipv4_of_a_socket_for_ipv6_is_denied_by_its_address() -> None:
    both = server(network__kafka=EVERYWHERE, network__http=EVERYWHERE, network__insecure=True, access__enabled=True)
    async with running(both) as made:
        await made.broker.topics.create(CALLER, TopicRequest(name="t"))
        everybody = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, ANY_USER, ANY, AclOperation.ALL, Permission.ALLOW)
        await made.broker.clients.access.add(CALLER, [everybody])
        assert (await topics(made), await status(made)) == (["t"], 200)
        denied = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, ANY_USER, HOST, AclOperation.ALL, Permission.DENY)
        await made.broker.clients.access.add(CALLER, [denied])
        assert (await topics(made), await status(made)) == ([], 403)


async def topics(made: Server) -> list[str]:
    """Return the topics that a Kafka client sees."""
    reader, writer = await asyncio.open_connection(HOST, made.kafka_address[1])
    writer.write(framed(request(METADATA, 1, topics=None)))
    answer = response(METADATA, 1, await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    writer.close()
    return [topic.name for topic in answer.topics]


async def status(made: Server) -> int:
    """Return the status with which a REST client gets the topic."""
    reader, writer = await asyncio.open_connection(HOST, made.http_address[1])
    writer.write(b"GET /topics/t HTTP/1.1\r\nHost: h\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])
