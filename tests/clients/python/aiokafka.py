"""aiokafka: asyncio, its own protocol code; one command for each scenario."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaError, for_code
from aiokafka.helpers import create_ssl_context

from tests.clients.python.lines import (
    SETTING,
    Acknowledged,
    end_of_input,
    flush,
    main,
    say,
    say_committed,
    say_record,
    say_refused,
    some_records,
)
from tests.clients.python.security import has_token, read_token, security

SECURITY = {
    "protocol": "security_protocol",
    "mechanism": "sasl_mechanism",
    "user": "sasl_plain_username",
    "password": "sasl_plain_password",
}
FILES = {"ca": "cafile", "certificate": "certfile", "key": "keyfile"}


def connection(bootstrap: str) -> dict[str, Any]:
    settings = {"bootstrap_servers": bootstrap, "client_id": "conformance", **security(SECURITY)}
    if has_token():
        settings |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": TokenFile()}
    return {**settings, "ssl_context": create_ssl_context(**security(FILES))}


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Gives the token of the test."""

    async def token(self) -> str:
        return read_token()


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    await client.start()
    yield client
    await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def say_message(found: Any) -> None:
    say_record(found.key, found.value, found.headers, found.timestamp, found.partition, found.offset)


async def produce(bootstrap: str, topic: str, codec: str) -> None:
    """Send the records of the input, idempotently."""
    producer = AIOKafkaProducer(
        **connection(bootstrap),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=5,
        max_batch_size=1 << 18,
    )
    acknowledged = Acknowledged()

    def delivered(sent: asyncio.Future[Any]) -> None:
        sent.result()
        acknowledged.one_more()

    async with started(producer):
        while given := await asyncio.to_thread(some_records):
            sent = [
                await producer.send(
                    topic, each.value, key=each.key, headers=each.headers, timestamp_ms=each.timestamp_ms
                )
                for each in given
            ]
            for future in sent:
                future.add_done_callback(delivered)
        await producer.flush()


async def consume(bootstrap: str, topic: str, group: str, count: str) -> None:
    """Print as many records as a group gets, then commit them and leave."""
    consumer = AIOKafkaConsumer(
        topic, **connection(bootstrap), group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with started(consumer):
        for _ in range(int(count)):
            say_message(await consumer.getone())
        await consumer.commit()


class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells what is assigned, each time that it has changed."""

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        say(assigned=sorted(each.partition for each in assigned))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        say(assigned=[])


async def member(bootstrap: str, topic: str, group: str, protocol: str, session_ms: str) -> None:
    """Read as one of a group until the input ends. Print what is assigned, read and committed. It is always eager."""
    consumer = AIOKafkaConsumer(
        **connection(bootstrap),
        group_id=group,
        auto_offset_reset="none",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=300,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe([topic], listener=Assigned())
    ended = end_of_input()
    async with started(consumer):
        while not ended.is_set():
            fetched = await consumer.getmany(timeout_ms=100)
            for messages in fetched.values():
                for each in messages:
                    say_message(each)
            if fetched:
                await commit(consumer, {place: messages[-1].offset + 1 for place, messages in fetched.items()})


async def commit(consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
    """Commit what was read, and print what the broker has confirmed."""
    flush()
    try:
        await consumer.commit(offsets)
    except (KafkaError, IllegalStateError) as failure:
        say_refused(type(failure).__name__, retriable=failure.retriable)
        return
    say_committed({place.partition: offset for place, offset in offsets.items()})


async def transact(bootstrap: str, topic: str) -> None:
    """Abort a transaction, and commit another one."""
    async with started(AIOKafkaProducer(**connection(bootstrap), transactional_id=topic)) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"committed")
        await producer.commit_transaction()


async def seek(bootstrap: str, topic: str, *times: str) -> None:
    """Print, for each time, the first record that is not older."""
    place = TopicPartition(topic, 0)
    async with started(AIOKafkaConsumer(**connection(bootstrap))) as consumer:
        consumer.assign([place])
        for time in times:
            consumer.seek(place, (await consumer.offsets_for_times({place: int(time)}))[place].offset)
            say_message(await consumer.getone())


async def read(bootstrap: str, topic: str) -> None:
    """Print the first partition, from its start to its end."""
    place = TopicPartition(topic, 0)
    async with started(AIOKafkaConsumer(**connection(bootstrap), auto_offset_reset="earliest")) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        async for message in consumer:
            say_message(message)
            if message.offset == end - 1:
                break


async def refused(step: str, work: Awaitable[Any]) -> None:
    """Tell Kafka's name of the error that a step has to end in."""
    try:
        await work
    except KafkaError as failure:
        say(step=step, error=failure.message)


def check(code: int) -> None:
    """Most answers of this client are for the caller to check."""
    if code:
        raise for_code(code)


async def administer(bootstrap: str, topic: str) -> None:
    async def create() -> None:
        # It cannot ask for the brokers' own replication factor.
        replicas = len(bootstrap.split(","))
        answer = await admin.create_topics([NewTopic(topic, 2, replicas, topic_configs={SETTING: "60000"})])
        check(answer.topic_errors[0][1])

    async def partitions() -> int:
        return len((await admin.describe_topics([topic]))[0]["partitions"])

    async def retention() -> dict[str, Any]:
        [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {SETTING: next(each[1] for each in answer.resources[0][4] if each[0] == SETTING)}

    async def alter(value: str) -> None:
        [answer] = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {SETTING: value})])
        check(answer.resources[0][0])

    async with started(AIOKafkaAdminClient(**connection(bootstrap))) as admin:
        await create()
        say(step="create", partitions=await partitions())
        await refused("create again", create())
        say(step="configs", **await retention())
        await alter("120000")
        say(step="alter", **await retention())
        await refused("alter badly", alter("soon"))
        await admin.create_partitions({topic: NewPartitions(4)})
        say(step="grow", partitions=await partitions())
        await delete_records(bootstrap, admin, topic)
        await admin.delete_topics([topic])
        say(step="delete", listed=topic in await admin.list_topics())


async def delete_records(bootstrap: str, admin: AIOKafkaAdminClient, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with started(AIOKafkaProducer(**connection(bootstrap), acks="all")) as producer:
        for _ in range(10):
            await producer.send(topic, b"x", partition=0)
    await admin.delete_records({place: RecordsToDelete(4)})
    async with started(AIOKafkaConsumer(**connection(bootstrap))) as consumer:
        start, end = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
    say(step="delete records", start=start[place], end=end[place])
    await refused("delete records beyond", admin.delete_records({place: RecordsToDelete(99)}))


async def administer_group(bootstrap: str, topic: str, group: str) -> None:
    """The steps for a group that has one committed offset and no members, as far as this client knows them."""
    async with started(AIOKafkaAdminClient(**connection(bootstrap))) as admin:
        say(step="list", listed=group in {each[0] for each in await admin.list_consumer_groups()})
        [answer] = await admin.describe_consumer_groups([group])
        _, _, state, _, _, members, *_ = answer.groups[0]
        say(step="describe", state=state, members=len(members))
        offsets = await admin.list_consumer_group_offsets(group)
        say(step="offsets", offset=offsets[TopicPartition(topic, 0)].offset)


def awaited(command: Callable[..., Any]) -> Callable[..., None]:
    return lambda *rest: asyncio.run(command(*rest))


if __name__ == "__main__":
    main(
        produce=awaited(produce),
        consume=awaited(consume),
        member=awaited(member),
        seek=awaited(seek),
        read=awaited(read),
        transact=awaited(transact),
        admin=awaited(administer),
        groups=awaited(administer_group),
    )
