"""The client for push targets, against targets that are slow, broken or hostile."""

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conveyor.adapters.push import http_push_client
from conveyor.adapters.push.http_push_client import HttpPushClient
from conveyor.adapters.push.target_connection import MAX_BODY_BYTES, MAX_HEAD_BYTES, TargetConnection
from conveyor.broker.queues.pushing.push_client import PushAnswer, PushFailed
from conveyor.settings.push_settings import PushSettings
from tests.certificates import Certificates
from tests.unit.adapters.push.raw_target import answering, raw_target, read_request, request

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture
def client() -> Iterator[HttpPushClient]:
    opened = HttpPushClient(PushSettings())
    yield opened
    opened.close()


async def test_request_and_answer(client: HttpPushClient) -> None:
    received = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(b"HTTP/1.1 429 No\r\nretry-after: 3\r\nRetry-After: 5\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    async with raw_target(talk) as port:
        assert await client.post(request(port)) == PushAnswer(status=429, retry_after=("3", "5"))
    head = ["POST /hook?x=1 HTTP/1.1", f"host: 127.0.0.1:{port}", "content-length: 5", "accept: */*", "ce-id: 1"]
    assert received == [(head, b"hello")]


async def test_connection_serves_the_next_request(client: HttpPushClient) -> None:
    opened = 0
    serve = answering(
        NO_CONTENT, NO_CONTENT, b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx", NO_CONTENT
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await serve(reader, writer)

    async with raw_target(talk) as port:
        for _ in range(3):
            await client.post(request(port))
        assert opened == 1
        await client.post(request(port))
        assert opened == 2
        await client.post(request(port, host="localhost"))  # Another target, by its name.
        assert opened == 3


async def test_request_on_a_connection_that_was_closed_meanwhile_is_made_on_a_new_one(client: HttpPushClient) -> None:
    async with raw_target(answering(NO_CONTENT, closes=True)) as port:
        for _ in range(20):
            assert (await client.post(request(port))).status == 204


async def test_kept_connections_are_limited_and_closed_when_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    client = HttpPushClient(PushSettings(max_connections=2))
    async with raw_target(answering(NO_CONTENT)) as port, raw_target(answering(NO_CONTENT)) as other:
        await asyncio.gather(*(client.post(request(each)) for each in (port, other, port, other)))
        assert len(client._kept) == 2
        client.close()
        assert not client._kept
        aged = HttpPushClient(PushSettings())
        monkeypatch.setattr(http_push_client, "MAX_AGE_S", 0)
        await aged.post(request(port))
        assert not aged._kept
        aged.close()


async def test_kept_connections_are_closed_for_those_to_other_targets() -> None:
    client, counts = HttpPushClient(PushSettings(max_connections=2)), []
    serve = answering(NO_CONTENT)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(len(client._kept) + client._open_count)
        await serve(reader, writer)

    async with raw_target(talk) as port, raw_target(talk) as other:
        for target in (port, other):
            await asyncio.gather(client.post(request(target)), client.post(request(target)))
    assert len(counts) == 4
    assert max(counts) == 2
    client.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES, "head of the target's answer is too long"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES, "head of the target's answer is too long"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES, "head of the target's answer is too long"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "not HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200", "has closed the connection"),
        (b"", "has closed the connection"),
    ],
)  # fmt: skip
async def test_answers_that_are_none(client: HttpPushClient, answer: bytes, reason: str) -> None:
    async with raw_target(answering(answer, closes=True)) as port:
        with pytest.raises(PushFailed, match=reason) as failure:
            await client.post(request(port))
    assert failure.value.is_sent


async def test_endless_head_is_cut_off(client: HttpPushClient) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"x: y\r\n" * 100)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            writer.close()

    async with raw_target(talk) as port:
        with pytest.raises(PushFailed, match="too long"):
            await client.post(request(port))


@pytest.mark.parametrize("has_length", [True, False])
async def test_long_body_is_cut_off_and_the_answer_counts(client: HttpPushClient, has_length: bool) -> None:
    body = b"x" * (100 * MAX_BODY_BYTES)
    head = b"HTTP/1.1 200 OK\r\n" + (b"content-length: %d\r\n" % len(body) if has_length else b"") + b"\r\n"
    async with raw_target(answering(head + body)) as port:
        assert (await client.post(request(port))).status == 200
    assert not client._kept


async def test_body_that_never_ends_does_not_hold_the_answer(
    client: HttpPushClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_push_client, "_REST_S", 0.01)
    async with raw_target(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")) as port:
        assert (await client.post(request(port))).status == 200
    assert not client._kept


async def test_second_answer_that_nobody_has_asked_for_closes_the_connection(client: HttpPushClient) -> None:
    async with raw_target(answering(NO_CONTENT * 2, NO_CONTENT)) as port:
        assert (await client.post(request(port))).status == 204
        assert not any(connection.is_reusable for connection in client._kept)


async def test_informational_answers_are_passed_over(client: HttpPushClient) -> None:
    async with raw_target(answering(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + NO_CONTENT)) as port:
        assert (await client.post(request(port))).status == 204


async def test_redirects_are_answers_and_are_not_followed(client: HttpPushClient) -> None:
    followed = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        followed.append(await reader.read(1))
        writer.close()

    async with raw_target(other) as elsewhere:
        location = f"HTTP/1.1 307 There\r\nlocation: http://127.0.0.1:{elsewhere}/latest/meta-data\r\n\r\n".encode()
        async with raw_target(answering(location)) as port:
            assert (await client.post(request(port))).status == 307
    assert not followed


async def test_request_that_is_given_up_closes_its_connection(client: HttpPushClient) -> None:
    received, closed = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        received.set()
        await reader.read()
        closed.set()
        writer.close()

    async with raw_target(talk) as port:
        post = asyncio.ensure_future(client.post(request(port)))
        await received.wait()
        post.cancel()
        await closed.wait()
    assert not client._kept


async def test_answer_counts_although_the_time_is_over_before_its_rest_comes(
    client: HttpPushClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = TargetConnection.complete

    async def give_up(connection: TargetConnection, patience_s: float) -> None:
        post.cancel()
        await complete(connection, patience_s)

    monkeypatch.setattr(TargetConnection, "complete", give_up)
    async with raw_target(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")) as port:
        post = asyncio.ensure_future(client.post(request(port)))
        assert (await post).status == 200
    assert not client._kept


async def test_request_that_is_given_up_before_it_has_a_connection_was_not_sent() -> None:
    ended = threading.Event()

    def look_up(host: str, port: int) -> Sequence[str]:
        ended.wait()
        return []

    client = HttpPushClient(PushSettings(), look_up)
    post = asyncio.ensure_future(client.post(request(9)))
    await asyncio.sleep(0)
    post.cancel()
    with pytest.raises(PushFailed, match="no connection to the target in time") as failure:
        await post
    assert not failure.value.is_sent
    ended.set()
    client.close()


@pytest.mark.parametrize("content", [b"", b"\x30\x82\x01\xff\xfe"])
async def test_file_of_authorities_that_names_none_is_no_permission_to_trust_others(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "ca.pem").write_bytes(content)
    client = HttpPushClient(PushSettings(ca_file=str(tmp_path / "ca.pem")), _Names(["127.0.0.1"]).look_up)
    with pytest.raises(PushFailed, match=r"push\.ca_file of this broker cannot be used") as failure:
        await client.post(request(9, is_encrypted=True))
    assert not failure.value.is_sent
    client.close()


async def test_header_with_a_line_break_is_not_sent(client: HttpPushClient) -> None:
    evil = replace(request(1), headers=(("a", "b\r\nc: d"),))
    with pytest.raises(PushFailed, match="line break"):
        await client.post(evil)


async def test_nobody_there(client: HttpPushClient) -> None:
    async with raw_target(answering()) as port:
        pass
    with pytest.raises(PushFailed, match="no connection") as failure:
        await client.post(request(port))
    assert not failure.value.is_sent


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_addresses_that_are_not_public_need_permission(client: HttpPushClient, host: str) -> None:
    connections = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    async with raw_target(talk) as port:
        with pytest.raises(PushFailed, match="not public") as failure:
            await client.post(request(port, host=host, allows_private=False))
    assert not failure.value.is_sent
    assert not connections
    assert "127" not in str(failure.value)


async def test_kept_connection_to_a_private_address_serves_no_request_that_may_not_reach_it(
    client: HttpPushClient,
) -> None:
    async with raw_target(answering(NO_CONTENT, NO_CONTENT)) as port:
        await client.post(request(port))
        with pytest.raises(PushFailed, match="not public"):
            await client.post(request(port, allows_private=False))


class _Names:
    """A name server that gives each look-up another answer."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)

    def look_up(self, host: str, port: int) -> Sequence[str]:
        return self.answers.pop(0)


async def test_name_is_looked_up_once_so_that_a_second_answer_cannot_lead_elsewhere() -> None:
    names = _Names(["127.0.0.1"], ["169.254.169.254"])
    client = HttpPushClient(PushSettings(), names.look_up)
    async with raw_target(answering(NO_CONTENT)) as port:
        assert (await client.post(request(port, host="rebinding.example"))).status == 204
    assert names.answers == [["169.254.169.254"]]
    client.close()


@pytest.mark.parametrize(
    "found", [["1.1.1.1", "10.0.0.1"], ["10.0.0.1"], ["64:ff9b::a00:1"], ["::ffff:1.1.1.1"], ["x"], []]
)
async def test_name_with_any_address_that_is_not_public_is_refused(found: list[str]) -> None:
    client = HttpPushClient(PushSettings(), _Names(found).look_up)
    with pytest.raises(PushFailed) as failure:
        await client.post(request(9, host="evil.example", allows_private=False, is_encrypted=True))
    assert not failure.value.is_sent
    client.close()


async def test_target_without_encryption_must_be_this_machine() -> None:
    client = HttpPushClient(PushSettings(), _Names(["10.0.0.1"]).look_up)
    with pytest.raises(PushFailed, match="not https"):
        await client.post(request(9, host="localhost"))
    client.close()


async def test_environment_names_no_proxy(client: HttpPushClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with raw_target(answering(NO_CONTENT)) as port:
        assert (await client.post(request(port))).status == 204


@pytest.mark.parametrize(
    ("host", "knows_authority", "reason"),
    [
        ("localhost", True, None),
        ("127.0.0.1", True, None),
        ("other.example", True, "certificate of the target is not valid: Hostname mismatch"),
        ("localhost", False, "certificate of the target is not valid"),
    ],
)
async def test_certificate_must_be_that_of_the_name(
    tmp_path: Path, host: str, knows_authority: bool, reason: str | None
) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.broker)
    ca_file = certificates.authority if knows_authority else ""
    client = HttpPushClient(PushSettings(ca_file=ca_file), _Names(["127.0.0.1"]).look_up)
    server = await asyncio.start_server(answering(NO_CONTENT), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        post = client.post(request(port, host=host, is_encrypted=True))
        if reason is None:
            assert (await post).status == 204
        else:
            with pytest.raises(PushFailed, match=reason):
                await post
    finally:
        client.close()
        server.close()
