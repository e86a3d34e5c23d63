"""What hostile clients send, from a random generator each: requests of Kafka and of HTTP, most of them broken."""

import time
from base64 import b64encode
from collections.abc import Iterator
from random import Random

from conveyor.kafka_api.authentication import MAX_REQUEST_BYTES
from conveyor.kafka_api.registry import HANDLERS
from conveyor.settings.sasl_settings import MECHANISMS
from tests.identity_provider import segment, token
from tests.unit.kafka_api.requests import METADATA, framed, request

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
_PATHS = (
    "/", "/topics", "/topics/hidden/messages", "/topics/%68idden", "/subscriptions", "/subscriptions/s/messages?wait=1",
    "/metrics", "/healthz", "/openapi.json", "/transactions", "/../topics", "//topics", "/topics/" + "x" * 5_000,
)  # fmt: skip


def metadata() -> bytes:
    return request(METADATA, 4, topics=None, allow_auto_topic_creation=False)


def strange_frames(random: Random) -> bytes:
    """Return what somebody without a proof sends over one connection of Kafka."""
    mechanism = random.choice((*MECHANISMS, "GSSAPI", "", "x" * 1_000))
    beginnings: tuple[list[bytes], ...] = (
        [],
        [request(API_VERSIONS, 0)],
        [request(HANDSHAKE, 1, mechanism=mechanism)],
        [request(API_VERSIONS, 0), request(HANDSHAKE, 1, mechanism=mechanism)],
    )
    frames = [*random.choice(beginnings)]
    makers = (login, scram, bearer, broken, request_of_a_user, noise)
    frames += [random.choice(makers)(random) for _ in range(random.randrange(4))]
    if random.random() < 0.3:
        frames.append(metadata())
    return b"".join(map(framed, frames))


def users_frames(random: Random) -> bytes:
    """Return what somebody who has logged in, and has no right, sends over the connection."""
    makers = (login, scram, bearer, broken, request_of_a_user, noise, any_request, any_request)
    again = request(HANDSHAKE, 1, mechanism=random.choice(MECHANISMS)), bearer(random)
    requests = [*random.choice((again, ())), *(random.choice(makers)(random) for _ in range(random.randrange(1, 5)))]
    return b"".join(map(framed, requests)) + random.choice(
        (b"", random.randbytes(100), b"\x7f\xff\xff\xff", framed(metadata()))
    )


def login(random: Random) -> bytes:
    parts = [random.choice(("", "admin", "eve", "\0", "a" * 10_000)) for _ in range(random.randrange(1, 5))]
    return request(AUTHENTICATE, random.randrange(3), auth_bytes="\0".join(parts).encode())


def scram(random: Random) -> bytes:
    first = random.choice(("n,,n=admin,r=x", "n,,n=eve,r=x", "p=tls-unique,,n=admin,r=x", "n,,n=,r=", "y,a=b,n=a,r=x"))
    last = random.choice(("c=biws,r=x,p=AAAA", "c=biws,r=", "c=,r=x,p=", "e=other-error"))
    text = random.choice((first, last, first[: random.randrange(len(first))], last * 500))
    return request(AUTHENTICATE, 2, auth_bytes=text.encode())


def bearer(random: Random) -> bytes:
    """Return a message with a token that is of another audience, not signed, or changed; or the client's last word."""
    whole = f"n,,\1auth=Bearer {wrong_token(random)}\1\1"
    return request(AUTHENTICATE, 2, auth_bytes=random.choice((whole, whole[:-1], "\1")).encode())


def wrong_token(random: Random) -> str:
    foreign = token(int(time.time() * 1000), "ES256", aud="another")
    unsigned = f"{segment({'alg': 'none', 'kid': 'one'}).decode()}.{foreign.split('.')[1]}."
    return random.choice((foreign, unsigned, foreign[: random.randrange(len(foreign))], "a" * 60_000, "." * 10_000))


def broken(random: Random) -> bytes:
    return damaged(random, random.choice((login, scram, bearer, request_of_a_user))(random), 8)


def damaged(random: Random, whole: bytes, least: int) -> bytes:
    """Change some bytes, and cut the rest off. least: the bytes that stay."""
    content = bytearray(whole)
    for _ in range(random.randrange(1, 4)):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content[: random.randrange(least, len(content) + 1)])


def request_of_a_user(random: Random) -> bytes:
    return random.choice((metadata(), request(AUTHENTICATE, 0, auth_bytes=b""), request(3, 0, topics=())))


def any_request(random: Random) -> bytes:
    """Return a request of any API and version, whose body is noise."""
    header = random.choice(sorted(HANDLERS)).to_bytes(2, "big") + random.randrange(18).to_bytes(2, "big")
    body = random.choice((bytes(40), b"\xff" * 40, random.randbytes(60), b"\x00\x00\x00\x01\x00\x06hidden" + bytes(60)))
    return header + random.randbytes(4) + b"\x00\x01x" + random.choice((b"", b"\x00")) + body


def noise(random: Random) -> bytes:
    return random.randbytes(random.choice((8, 9, 100, 5_000, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1)))


def no_tls(random: Random) -> bytes:
    """Return bytes that no handshake of TLS begins with, or that end it."""
    head = random.choice((b"", b"\x16\x03\x01\x40\x00", b"\x16\x03\x01\x00\x05", b"\x17\x03\x03\x00\x10", b"GET"))
    return head + random.randbytes(random.choice((0, 1, 5, 100, 20_000)))


def http_requests(random: Random, credentials: str | None) -> Iterator[bytes]:
    """Yield requests for one connection of HTTP. credentials: user and password; None to guess, or to send none."""
    for _ in range(random.randrange(1, 4)):
        guesses = ("", "Basic", "Basic !!", "Bearer " + wrong_token(random)[:9_000], basic("admin:x"), basic("eve"))
        header = random.choice(guesses) if credentials is None else basic(credentials)
        path = random.choice(_PATHS)
        body = random.choice((b"", b"{}", b"[" * 2_000, b'{"messages":[{"value":1}]}', random.randbytes(200)))
        lengths = (f"Content-Length: {len(body)}",) * 3
        odd = ("Content-Length: -1", "Content-Length: 9" + "9" * 30, "Transfer-Encoding: chunked", "X: " + "y" * 9_000)
        lines = [
            f"{random.choice(('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'BREW'))} {path} HTTP/1.1", "Host: x",
            *((f"Authorization: {header}",) if header else ()), random.choice((*lengths, *odd)),
        ]  # fmt: skip
        whole = "\r\n".join((*lines, "", "")).encode() + body
        yield whole if random.random() < 0.6 else damaged(random, whole, 1)


def basic(pair: str) -> str:
    return f"Basic {b64encode(pair.encode()).decode()}"
