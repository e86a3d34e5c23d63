"""An identity provider of tests: its keys, its tokens, and a server that publishes the keys."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64encode

ISSUER, AUDIENCE = "https://id.example", "kafka"

Key = RSAKey | ECKey | OKPKey | OctKey


def signing_key(algorithm: str, kid: str = "one") -> Any:
    """Return a pair of keys for an algorithm, the same one for the same arguments."""
    return _made(algorithm, kid)


@cache
def _made(algorithm: str, kid: str) -> Any:
    named: Any = {"kid": kid}
    if algorithm.startswith("ES"):
        return ECKey.generate_key({"256": "P-256", "384": "P-384", "512": "P-521"}[algorithm[2:]], named)
    if algorithm.startswith("Ed"):
        return OKPKey.generate_key("Ed25519", named)
    return RSAKey.generate_key(2048, named)


def key_set(*keys: Any, **more: Any) -> bytes:
    """Return the document (JWKS) with the public halves of keys. more: members of each."""
    return json.dumps({"keys": [{**key.as_dict(private=False), **more} for key in keys]}).encode()


def segment(content: object) -> bytes:
    """Return a part of a token: bytes as they are, anything else as JSON."""
    return urlsafe_b64encode(content if isinstance(content, bytes) else json.dumps(content).encode())


def sign(header: object, payload: object, algorithm: str, key: Any) -> str:
    """Return a token with any header and payload."""
    signed = segment(header) + b"." + segment(payload)
    return (signed + b"." + segment(JWSRegistry.algorithms[algorithm].sign(signed, key))).decode()


def claims(now_ms: int, **changed: Any) -> dict[str, Any]:
    """Return the claims of alice for five minutes. changed: None leaves a claim out."""
    now = now_ms // 1000
    given = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 300, **changed}
    return {name: value for name, value in given.items() if value is not None}


def token(now_ms: int, algorithm: str = "RS256", kid: str = "one", **changed: Any) -> str:
    """Return a token with these claims."""
    header = {"alg": algorithm, "typ": "JWT", "kid": kid}
    return sign(header, claims(now_ms, **changed), algorithm, signing_key(algorithm, kid))


class KeyServer:
    """Serves HTTP on loopback. answer: returns the status, headers and body of the answer to a path."""

    def __init__(self, answer: Callable[[str], tuple[int, Mapping[str, str], bytes]]) -> None:
        self.paths: list[str] = []
        """Those that were asked for."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                status, headers, body = answer(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as the base class has it
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
