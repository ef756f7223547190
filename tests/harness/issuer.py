"""An OpenID Connect issuer for tests, on https: its configuration, its keys, and its tokens.

    issuer = Issuer(authority)
    issuer.add_client("alice", "secret", role="alice")
    ... a client asks `issuer.url` for a token with the client credentials of OAuth 2 ...
    issuer.rotate()       # new tokens are signed with another key, whose name is new, too
    issuer.close()

`asked` counts the requests by their paths.
"""

import json
import ssl
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.harness.certificates import Authority

Algorithm: TypeAlias = Literal["RS256", "ES256"]

CONFIGURATION, KEYS, TOKEN = "/.well-known/openid-configuration", "/keys", "/token"


class Issuer:
    """Serves from the constructor until `close`.  Its certificate is made out to localhost."""

    def __init__(
        self, authority: Authority, *, audience: str = "daybook", algorithm: Algorithm = "RS256"
    ) -> None:
        self.audience = audience
        self.lasts_s = 3600.0  # how long a token counts from now on
        self.asked = Counter[str]()
        self.keys_asked_s = float(
            "-inf"
        )  # when the keys were asked for last, by the clock `monotonic`
        self._serial = count(1)
        self._clients: dict[str, tuple[str, str]] = {}  # secret and role, by client id
        self._lock = threading.Lock()
        self._published: list[dict[str, Any]] = []
        self.rotate(algorithm)
        issued = authority.issue("issuer", hosts=("localhost",))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(issued.certificate, issued.key)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def setup(self) -> None:
                # In the thread of the connection: a slow handshake keeps nobody else waiting.
                self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def do_GET(self) -> None:
                self._answer(*issuer.get(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(*issuer.post(self.path, parse_qs(body.decode())))

            def _answer(self, status: int, value: object) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Write nothing: the standard error is that of the test."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Clients that do not trust the issuer end the handshake, as tests want it."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rotate(self, algorithm: Algorithm = "RS256", *, keep: bool = False) -> None:
        """Sign with a new key from now on; `keep` publishes the ones before, too."""
        rsa_key = algorithm == "RS256"
        key = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048)
            if rsa_key
            else ec.generate_private_key(ec.SECP256R1())
        )
        key_id = f"key-{next(self._serial)}"
        public = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
        published = {**public, "kid": key_id, "use": "sig", "alg": algorithm}
        with self._lock:
            self._key, self._key_id, self._algorithm = key, key_id, algorithm
            self._published = [*(self._published if keep else ()), published]

    def add_client(self, client_id: str, secret: str, role: str) -> None:
        """Let a client ask for tokens of a role."""
        self._clients[client_id] = secret, role

    def token(self, role: str, lasts_s: float | None = None, **claims: object) -> str:
        """Return a token, as the issuer gives it to a client; `claims` replace those of it."""
        now = time.time()
        lasts_s = self.lasts_s if lasts_s is None else lasts_s
        found = {"iss": self.url, "sub": role, "aud": self.audience, "iat": int(now)}
        with self._lock:
            return jwt.encode(
                {**found, "exp": now + lasts_s, **claims},
                self._key,
                self._algorithm,
                headers={"kid": self._key_id},
            )

    # -- the answers, as a status and an object

    def get(self, path: str) -> tuple[int, object]:
        self.asked[path] += 1
        if path == CONFIGURATION:
            return 200, {
                "issuer": self.url,
                "jwks_uri": self.url + KEYS,
                "token_endpoint": self.url + TOKEN,
            }
        if path == KEYS:
            self.keys_asked_s = time.monotonic()
            with self._lock:
                return 200, {"keys": self._published}
        return 404, {"error": "not_found"}

    def post(self, path: str, form: dict[str, list[str]]) -> tuple[int, object]:
        self.asked[path] += 1
        if path != TOKEN:
            return 404, {"error": "not_found"}
        asked = {name: values[0] for name, values in form.items()}
        secret, role = self._clients.get(asked.get("client_id", ""), ("", ""))
        if not secret or asked.get("client_secret") != secret:
            why = {"error": "invalid_client", "error_description": "the secret is wrong"}
            return 401, why
        if (
            asked.get("grant_type") != "client_credentials"
            or asked.get("audience") != self.audience
        ):
            return 400, {"error": "invalid_request", "error_description": "another audience"}
        return 200, {
            "access_token": self.token(role),
            "token_type": "Bearer",
            "expires_in": int(self.lasts_s),
        }
