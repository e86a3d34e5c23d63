"""Requests of HTTP/1, byte by byte, and what comes of them: the cases that llhttp tests, in requests of our own.

llhttp's tests are published as `test/request` of nodejs/llhttp. Where the engine is stricter than llhttp by default, or
than one of its lenient settings, the name of the vector says why after `since`.
"""

from typing import NamedTuple


class Expected(NamedTuple):
    """A request that is complete. headers: all of them but Host, in order."""

    method: str = "GET"
    target: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    keeps_alive: bool = True


class Vector(NamedTuple):
    """The bytes of one connection. refusal: why it takes no more, in part; is_partial: a request has begun."""

    data: bytes
    requests: tuple[Expected, ...] = ()
    refusal: str | None = None
    is_partial: bool = False


def head(line: str, *fields: str) -> bytes:
    """Return a head with a Host."""
    return "\r\n".join((line, "Host: h", *fields, "", "")).encode()


def good(data: bytes, *requests: Expected) -> Vector:
    return Vector(data, requests)


def bad(refusal: str, data: bytes, *requests: Expected) -> Vector:
    return Vector(data, requests, refusal)


def partial(data: bytes, *requests: Expected) -> Vector:
    return Vector(data, requests, is_partial=True)


GET, POST = "GET / HTTP/1.1", "POST / HTTP/1.1"
CHUNKED = head(POST, "Transfer-Encoding: chunked")
CODING = (("transfer-encoding", "chunked"),)
UPGRADE = ("Connection: Upgrade", "Upgrade: tls")
UPGRADING = (("connection", "Upgrade"), ("upgrade", "tls"))
CLOSING = (("connection", "close"),)
LENGTH = (("content-length", "2"),)


def chunked(body: bytes) -> Expected:
    return Expected("POST", headers=CODING, body=body)


METHODS = {
    "method: simple": good(head("OPTIONS /a HTTP/1.1", "X:\t y"), Expected("OPTIONS", "/a", (("x", "y"),))),
    "method: HEAD begins as HTTP does": good(head("HEAD /a HTTP/1.1"), Expected("HEAD", "/a")),
    "method: REPORT": good(head("REPORT /a HTTP/1.1"), Expected("REPORT", "/a")),
    "method: M-SEARCH of an asterisk": good(head("M-SEARCH * HTTP/1.1"), Expected("M-SEARCH", "*")),
    "method: PATCH with a body": good(
        head("PATCH /a HTTP/1.1", "Content-Length: 2") + b"ab", Expected("PATCH", "/a", LENGTH, b"ab")
    ),
    "method: PURGE": good(head("PURGE /a HTTP/1.1"), Expected("PURGE", "/a")),
    "method: SEARCH": good(head("SEARCH / HTTP/1.1"), Expected("SEARCH")),
    "method: LINK with a header twice": good(
        head("LINK /a HTTP/1.1", "Link: <b>", "Link: <c>"), Expected("LINK", "/a", (("link", "<b>"), ("link", "<c>")))
    ),
    "method: UNLINK": good(head("UNLINK /a HTTP/1.1", "Link: <b>"), Expected("UNLINK", "/a", (("link", "<b>"),))),
    "method: SOURCE": good(head("SOURCE /a HTTP/1.1"), Expected("SOURCE", "/a")),
    "method: QUERY with a body": good(
        head("QUERY /a HTTP/1.1", "Content-Length: 2") + b"ab", Expected("QUERY", "/a", LENGTH, b"ab")
    ),
    "method: CONNECT is an ordinary request, since there are no tunnels": good(
        b"CONNECT a-1.example:443 HTTP/1.0\r\nX: y\r\n\r\n",
        Expected("CONNECT", "a-1.example:443", (("x", "y"),), keeps_alive=False),
    ),
    "method: CONNECT to a host in capitals": good(
        b"CONNECT A.EXAMPLE:443 HTTP/1.0\r\n\r\n", Expected("CONNECT", "A.EXAMPLE:443", keeps_alive=False)
    ),
    "method: CONNECT to a host with an underscore": good(
        b"CONNECT a_b.example:443 HTTP/1.0\r\n\r\n", Expected("CONNECT", "a_b.example:443", keeps_alive=False)
    ),
    "method: what follows CONNECT is refused, since there are no tunnels": bad(
        "Invalid method",
        b"CONNECT a.example:443 HTTP/1.0\r\n\r\ndata of a tunnel",
        Expected("CONNECT", "a.example:443", keeps_alive=False),
    ),
    "method: CONNECT has a body by its length, since there are no tunnels": bad(
        "Invalid method",
        b"CONNECT a.example:443 HTTP/1.0\r\nContent-Length: 2\r\n\r\nab#",
        Expected("CONNECT", "a.example:443", LENGTH, b"ab", keeps_alive=False),
    ),
    "method: unknown, but begins as a known one": bad("after method", head("GETS / HTTP/1.1")),
    "method: PRI is refused, since HTTP/2 is not spoken": bad("PRI", b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n"),
    "method: of RTSP": bad("Invalid method for HTTP", b"ANNOUNCE /a HTTP/1.0\r\nHost: h\r\n\r\n"),
}
PROTOCOLS = {
    "protocol: none, since HTTP/0.9 has no headers": bad("HTTP/0.9", b"GET /\r\n\r\n"),
    "protocol: ICE with its method is read as HTTP": good(
        head("SOURCE /a ICE/1.0"), Expected("SOURCE", "/a", keeps_alive=False)
    ),
    "protocol: RTSP with a method of both is read as HTTP": good(
        head("OPTIONS /a RTSP/1.0"), Expected("OPTIONS", "/a", keeps_alive=False)
    ),
    "protocol: RTSP with its method is read as HTTP": good(
        head("ANNOUNCE /a RTSP/1.0"), Expected("ANNOUNCE", "/a", keeps_alive=False)
    ),
    "protocol: ICE with another method": bad("SOURCE", head("GET /a ICE/1.0")),
    "protocol: RTSP with another method": bad("Invalid method for RTSP", head("PUT /a RTSP/1.0")),
    "protocol: unknown": bad("Expected HTTP/", head("GET /a XHTTP/1.1")),
    "protocol: unknown version, also if another server takes it, since its rules are unknown": bad(
        "Invalid HTTP version", head("GET / HTTP/4.2")
    ),
}
TARGETS = {
    "target: quotes and backslashes": good(head(r'GET /"a"?b=\"c\" HTTP/1.1'), Expected(target=r'/"a"?b=\"c\"')),
    "target: second question mark": good(head("GET /a?b=c?d HTTP/1.1"), Expected(target="/a?b=c?d")),
    "target: bar": good(head("GET /a?b=| HTTP/1.1"), Expected(target="/a?b=|")),
    "target: host that ends with a query": good(head("GET http://h?a=b HTTP/1.1"), Expected(target="http://h?a=b")),
    "target: port that ends with a query": good(head("GET http://h:1?a HTTP/1.1"), Expected(target="http://h:1?a")),
    "target: port at the end": good(head("GET http://h:1 HTTP/1.1"), Expected(target="http://h:1")),
    "target: user and password": good(head("GET http://a%20:b!$@h/c HTTP/1.1"), Expected(target="http://a%20:b!$@h/c")),
    "target: fragment is refused, since clients keep it to themselves": bad(
        "invalid character", head("GET /a?b#c HTTP/1.1")
    ),
    "target: path that is not ASCII": bad("Invalid char in url path", head("GET /å HTTP/1.1")),
    "target: space": bad("Expected HTTP/", head("GET /a b HTTP/1.1")),
}
HEADERS = {
    "headers: of curl": good(
        head("GET /a HTTP/1.1", "User-Agent: curl/8.0 (x; y)", "Accept: */*"),
        Expected(target="/a", headers=(("user-agent", "curl/8.0 (x; y)"), ("accept", "*/*"))),
    ),
    "headers: of a browser": good(
        head(GET, "Accept: text/html;q=0.9,*/*;q=0.8", "Keep-Alive: 9", "Connection: keep-alive"),
        Expected(headers=(("accept", "text/html;q=0.9,*/*;q=0.8"), ("keep-alive", "9"), ("connection", "keep-alive"))),
    ),
    "headers: value of punctuation without a space": good(head(GET, "x:++"), Expected(headers=(("x", "++"),))),
    "headers: none but Host": good(head("GET /a/b HTTP/1.1"), Expected(target="/a/b")),
    "headers: one": good(head(GET, "Accept: */*"), Expected(headers=(("accept", "*/*"),))),
    "headers: of HTTP/1.0 without a length": good(
        b"GET /a HTTP/1.0\r\nHost: h\r\nX: y\r\n\r\n", Expected(target="/a", headers=(("x", "y"),), keeps_alive=False)
    ),
    "headers: line end before the request": good(b"\r\n" + head(GET), Expected()),
    "headers: line end before a request with headers": good(
        b"\r\n" + head(GET, "X: y"), Expected(headers=(("x", "y"),))
    ),
    "headers: UTF-8 in a value": good(head(GET, "X: Zoë"), Expected(headers=(("x", "Zoë"),))),
    "headers: byte 255 in a value": good(
        head(GET, "X: ?y").replace(b"?", b"\xff"), Expected(headers=(("x", "\udcffy"),))
    ),
    "headers: folded, since RFC 9112 lets servers refuse that": bad("whitespace", head(GET, "X: a", "\tb", " c")),
    "headers: folded certificate, since RFC 9112 lets servers refuse that": bad(
        "whitespace", head(GET, "X: -----BEGIN", "\tAAAA", "\t-----END")
    ),
    "headers: folded before a value, since RFC 9112 lets servers refuse that": bad(
        "Invalid header value", head(GET, "X:", " a")
    ),
    "headers: space before the first": bad("Unexpected space", b"GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
    "headers: space before a length, since it would hide a request": bad(
        "whitespace", head(POST, "X: y", " Content-Length: 35") + head("GET /hidden HTTP/1.1")
    ),
    "headers: line ends without CR, folded": bad("CRLF", b"GET / HTTP/1.1\nHost: h\nX: a\n\tb\n\n"),
    "headers: line ends without CR, since other servers may not see them": bad(
        "CRLF", b"POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\n\n1\na\n0\n\n"
    ),
    "headers: CR between two": bad("Missing expected LF", head(GET, "X: a\rY: b")),
    "headers: LF between two": bad("Missing expected CR", head(POST, "x:y\nTransfer-Encoding: chunked") + b"0\r\n\r\n"),
    "headers: LF before a length that would hide a request": bad(
        "Missing expected CR", head(GET, "X: y\nContent-Length: 22") + head("GET /hidden HTTP/1.1")
    ),
    "headers: CR after an empty value": bad("Expected LF", head(POST, "x:\rTransfer-Encoding: chunked") + b"0\r\n\r\n"),
    "headers: LF after an empty value": bad(
        "Invalid header value", head(POST, "x:\nTransfer-Encoding: chunked") + b"0\r\n\r\n"
    ),
    "headers: CR and a letter before the end, since nobody may begin a request there": bad(
        "Expected LF", b"GET / HTTP/1.1\r\nConnection: close\r\nHost: h\r\n\rAGET /hidden: HTTP/1.1\r\n\r\n"
    ),
    "headers: at sign in a name": bad("Invalid header token", head(GET, "a@: b")),
    "headers: control characters in a name": bad("Invalid header token", head(GET, "a\x02\tb: c")),
    "headers: no name": bad("Invalid header token", head(GET, ": b")),
    "headers: line end in a name": bad("Invalid header token", head(GET, "a", " : b")),
    "headers: CR in a name": bad("Invalid header token", head(GET, "a\r\x1bb", "c: d")),
    "headers: CR in the name Connection": bad("Invalid header token", head(GET, "Connection\r\x1bb", "c: d")),
    "headers: CR in the name Content-Length": bad("Invalid header token", head(POST, "Content\rLength: 2") + b"ab"),
    "headers: space before a colon, since proxies and servers differ on it": bad(
        "Invalid header field", head(POST, "Connection : upgrade", "Content-Length: 2", "Upgrade: x") + b"ab"
    ),
    "headers: space before the colon of a length, since proxies and servers differ on it": bad(
        "Invalid header field", head(POST, "Content-Length : 2") + b"ab"
    ),
    "headers: CR without LF after the request line, since proxies and servers differ on it": bad(
        "Expected CRLF", b"GET / HTTP/1.1\rHost: h\r\n\r\n"
    ),
    "headers: form feed as a value, since no client needs it": bad("Invalid header value", head(GET, "X: \f")),
    "headers: form feed in a value, since no client needs it": bad("Invalid header value", head(GET, "X: a\fb")),
    "headers: form feed in a second request, since no client needs it": bad(
        "Invalid header value", head(GET, "X: a") + b"\r\n" + head(GET, "X: \f"), Expected(headers=(("x", "a"),))
    ),
    "headers: two hosts, since proxies and servers may choose different ones": bad("Host", head(GET, "host: other")),
    "headers: no end": partial(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Le"),
}
LENGTHS = {
    "length: zeros before it": good(
        head(POST, "Content-Length: 002") + b"ab", Expected("POST", headers=(("content-length", "002"),), body=b"ab")
    ),
    "length: further headers after it": good(
        head(POST, "Content-Length: 2", "X: y") + b"ab", Expected("POST", headers=(*LENGTH, ("x", "y")), body=b"ab")
    ),
    "length: mixed case, in a GET of HTTP/1.0": good(
        b"GET /a HTTP/1.0\r\ncONTENT-lENGTH: 2\r\n\r\nab", Expected("GET", "/a", LENGTH, b"ab", keeps_alive=False)
    ),
    "length: body in one piece": good(
        head(POST, "Content-Length: 2") + b"ab", Expected("POST", headers=LENGTH, body=b"ab")
    ),
    "length: spaces around it": partial(head(POST, "Content-Length:  2 ")),
    "length: tabs around it": partial(head(POST, "Content-Length:\t2\t ")),
    "length: body that a second request takes the place of, since each body is read": partial(
        head(POST, "Content-Length: 200") + head(POST, "Content-Length: 200")
    ),
    "length: CR before the body, since it ends no head": bad(
        "Expected LF", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\rab"
    ),
    "length: body that is missing": partial(head("PUT / HTTP/1.1", "Content-Length: 2")),
    "length: more than 64 bits": bad("overflow", head(POST, "Content-Length: 3000000000000000000000")),
    "length: two of them": bad("Duplicate", head(POST, "Content-Length: 2", "Content-Length: 3")),
    "length: before a coding, since either could be believed": bad(
        "can't be present", head(POST, "Content-Length: 2", "Transfer-Encoding: chunked")
    ),
    "length: before the coding identity": bad(
        "can't be present", head(POST, "Content-Length: 2", "Transfer-Encoding: identity")
    ),
    "length: after the coding identity, since either could be believed": bad(
        "can't be present", head(POST, "Transfer-Encoding: identity", "Content-Length: 2") + b"ab"
    ),
    "length: before empty codings": bad(
        "can't be present", head(POST, "Content-Length: 2", "Transfer-Encoding:", "Transfer-Encoding:") + b"ab"
    ),
    "length: after an empty coding": bad(
        "Empty Transfer-Encoding", head(POST, "Transfer-Encoding:", "Content-Length: 2") + b"ab"
    ),
    "length: space in it": bad("Invalid character", head(POST, "Content-Length: 1 2")),
    "length: space in a longer one": bad("Invalid character", head(POST, "Content-Length: 10 20")),
    "length: empty": bad("Empty Content-Length", head(POST, "Content-Length:")),
}
CHUNKS = {
    "chunks: none yet": partial(CHUNKED),
    "chunks: size in a small letter": good(CHUNKED + b"b\r\nhello world\r\n0\r\n\r\n", chunked(b"hello world")),
    "chunks: size in a capital letter": good(CHUNKED + b"B\r\nhello world\r\n0\r\n\r\n", chunked(b"hello world")),
    "chunks: size of two digits": good(CHUNKED + b"1a\r\n" + b"z" * 26 + b"\r\n0\r\n\r\n", chunked(b"z" * 26)),
    "chunks: two, and zeros at the end": good(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n000\r\n\r\n", chunked(b"abc")),
    "chunks: trailers are dropped, since they must not become headers": good(
        CHUNKED + b"2\r\nab\r\n0\r\nX: y\r\nHost: other\r\n\r\n", chunked(b"ab")
    ),
    "chunks: extensions": partial(CHUNKED + b"2;a;b=c\r\nab\r\n1;d\r\nc\r\n0\r\n"),
    "chunks: extension with a value": good(CHUNKED + b"2;a=b\r\nab\r\n0\r\n\r\n", chunked(b"ab")),
    "chunks: quoted extensions": partial(CHUNKED + b'2;a="b \\"c\\"; \\\\";d\r\nab\r\n0\r\n'),
    "chunks: quote that does not end": bad("quoted value", CHUNKED + b'2;a="b\r\nab\r\n0\r\n'),
    "chunks: extension without a semicolon": bad("chunk size", CHUNKED + b"2 a\r\nab\r\n0 b\r\n\r\n"),
    "chunks: semicolon without an extension": bad("chunk extensions", CHUNKED + b"2;\r\nab\r\n0\r\n\r\n"),
    "chunks: no last one": bad("chunk size", CHUNKED + b"2\r\nab\r\n\r\n"),
    "chunks: LF after a size": bad("chunk size", CHUNKED + b"2 \n  \r\nab\r\n"),
    "chunks: space after a size, since it could end the size elsewhere": bad(
        "chunk size", CHUNKED + b"2 \r\nab\r\n0\r\n\r\n"
    ),
    "chunks: CR without LF after a size, since others count differently then": bad(
        "after chunk size", CHUNKED + b"3\r\r;ab\r\n16\r\nc\r\n0\r\n\r\n" + head("GET /hidden HTTP/1.1")
    ),
    "chunks: no line end after the data, since others count differently then": bad(
        "after chunk data", CHUNKED + b"2\r\nab0\r\n\r\n"
    ),
    "coding: unknown": bad("chunked", head(POST, "Transfer-Encoding: zebra")),
    "coding: chunked twice in one word": bad("chunked", head(POST, "Transfer-Encoding: chunkedchunked")),
    "coding: folded": bad("whitespace", head(POST, "Transfer-Encoding: chunked", " a") + b"0\r\n\r\n"),
    "coding: another one after chunked, since the body would have no end": bad(
        "Invalid `Transfer-Encoding`", head(POST, "Transfer-Encoding: chunked, gzip") + b"ab"
    ),
    "coding: another one in a header after chunked, since the body would have no end": bad(
        "Invalid `Transfer-Encoding`", head(POST, "Transfer-Encoding: chunked", "Transfer-Encoding: gzip") + b"ab"
    ),
    "coding: another one before chunked, since bodies are compressed by Content-Encoding alone": bad(
        "must be chunked", head(POST, "Transfer-Encoding: gzip, chunked") + b"2\r\nab\r\n0\r\n\r\n"
    ),
    "coding: another one in a header before chunked, since bodies are compressed by Content-Encoding alone": bad(
        "must be chunked", head(POST, "Transfer-Encoding: gzip", "Transfer-Encoding: chunked") + b"2\r\nab\r\n0\r\n\r\n"
    ),
}
CONNECTIONS = {
    "connection: kept alive": good(
        head(GET, "Connection: keep-alive"), Expected(headers=(("connection", "keep-alive"),))
    ),
    "connection: kept alive for two requests": good(
        head(GET, "Connection: keep-alive") * 2, *[Expected(headers=(("connection", "keep-alive"),))] * 2
    ),
    "connection: three requests, of which the last has no end": partial(
        head(POST, "Content-Length: 2")
        + b"ab"
        + head("PUT / HTTP/1.1", "Content-Length: 2")
        + b"cd"
        + head("PATCH / HTTP/1.1", "Content-Length: 2")
        + b"e",
        Expected("POST", headers=LENGTH, body=b"ab"),
        Expected("PUT", headers=LENGTH, body=b"cd"),
    ),
    "connection: complete without a further byte": good(head(GET), Expected()),
    "connection: CR in keep-alive": bad("Missing expected LF", head(GET, "Connection: keep\ralive")),
    "connection: line end between requests": partial(
        head(POST, "Content-Length: 2") + b"ab\r\n\r\nGET / HTTP/1.1", Expected("POST", headers=LENGTH, body=b"ab")
    ),
    "connection: request after one of HTTP/1.0": bad(
        "Data after", b"GET / HTTP/1.0\r\n\r\n" + head(GET), Expected(keeps_alive=False)
    ),
    "connection: chunks after a request of HTTP/1.0, since its client said that it was the last": bad(
        "Data after",
        b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n" + CHUNKED,
        Expected("POST", headers=(("content-length", "0"),), keeps_alive=False),
    ),
    "connection: closed": good(head(GET, "Connection: close"), Expected(headers=CLOSING, keeps_alive=False)),
    "connection: request after the last, since its client said that it was the last": bad(
        "Data after",
        head(POST, "Content-Length: 2", "Connection: close") + b"ab\r\n\r\nGET / HTTP/1.1",
        Expected("POST", headers=(*LENGTH, *CLOSING), body=b"ab", keeps_alive=False),
    ),
    "connection: several words": good(
        head(GET, "Connection: close, a, upgrade, b, keep-alive"),
        Expected(headers=(("connection", "close, a, upgrade, b, keep-alive"),), keeps_alive=False),
    ),
    "connection: closed, with a tab": good(
        head(GET, "Connection: close\t"), Expected(headers=CLOSING, keeps_alive=False)
    ),
    "connection: request after the last, whose close has a tab": bad(
        "Data after",
        head(POST, "Content-Length: 2", "Connection: close\t") + b"ab\r\n\r\nGET / HTTP/1.1",
        Expected("POST", headers=(*LENGTH, *CLOSING), body=b"ab", keeps_alive=False),
    ),
    "upgrade: is an ordinary request": good(head("PUT / HTTP/1.1", *UPGRADE), Expected("PUT", headers=UPGRADING)),
    "upgrade: what follows is a request, since the application has not agreed": bad(
        "Invalid method", head(GET, *UPGRADE) + b"some other protocol", Expected(headers=UPGRADING)
    ),
    "upgrade: what follows several words is a request, since the application has not agreed": bad(
        "Invalid method",
        head(GET, "Connection: keep-alive, upgrade", "Upgrade: tls") + b"some other protocol",
        Expected(headers=(("connection", "keep-alive, upgrade"), ("upgrade", "tls"))),
    ),
    "upgrade: what follows the body is a request, since the application has not agreed": bad(
        "Invalid method",
        head(POST, *UPGRADE, "Content-Length: 2") + b"ab#",
        Expected("POST", headers=(*UPGRADING, *LENGTH), body=b"ab"),
    ),
    "upgrade: what follows the body of an upgrade to HTTP/2 is a request, since the application has not agreed": bad(
        "Invalid method",
        head(POST, "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 2") + b"abSM",
        Expected("POST", headers=(("connection", "Upgrade"), ("upgrade", "h2c"), *LENGTH), body=b"ab"),
    ),
    "upgrade: folded, since RFC 9112 lets servers refuse that": bad(
        "whitespace", head(GET, "Connection: a,", " Upgrade", "Upgrade: tls") + b"some other protocol"
    ),
}
VECTORS = METHODS | PROTOCOLS | TARGETS | HEADERS | LENGTHS | CHUNKS | CONNECTIONS
