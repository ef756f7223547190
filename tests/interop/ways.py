"""Pulsar's clients and admin clients, which get their credentials with each request.

A request has the field `do` and the fields of the client: where the brokers are, and who it is.
The answer is "ok" and what was found, or "refused" and the error.  `java/Ways.java` and
`go/ways.go` are two of the clients; here is the one for Python, and the one that drives
`pulsar-admin`.
"""

import json
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pulsar
import pytest
from pulsar import schema as typed

from tests.harness.processes import PATIENCE_S, end, start
from tests.interop.apache import SMALL_JVM, go_client, pulsar_admin_here, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.lines import line_of

JAVA, ADMIN = SOURCE.with_name("Ways.java"), SOURCE.with_name("Admin.java")
_MS = int(PATIENCE_S * 1000)
_SIZES = (1, 20_000, 100_000)


class Ways(Protocol):
    """A client.  `log_from` returns what it has written to its log behind `log_size` bytes."""

    @property
    def name(self) -> str: ...

    @property
    def log_size(self) -> int: ...

    def log_from(self, size: int) -> str: ...

    def ask(self, do: str, **fields: object) -> str: ...

    def close(self) -> None: ...


class _Logged:
    """The log of a client."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def log_size(self) -> int:
        return self._log.stat().st_size

    def log_from(self, size: int) -> str:
        return self._log.read_bytes()[size:].decode()


class Program(_Logged):
    """A client in a process of its own."""

    def __init__(self, name: str, command: list[str], log: Path, environ: dict[str, str]) -> None:
        super().__init__(log)
        self.name = name
        self._process = start(command, log, environ=environ)

    def ask(self, do: str, **fields: object) -> str:
        """Return the answer to a request."""
        assert self._process.stdin is not None
        words = (f"{name}={value}" for name, value in {"do": do, **fields}.items())
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        return line_of(self._process)

    def close(self) -> None:
        end(self._process)


def java_ways(directory: Path, environ: dict[str, str]) -> Program:
    command = pulsar_client_here().command(directory, str(JAVA))
    return Program("Java", command, directory / "java.txt", environ)


def go_ways(directory: Path, environ: dict[str, str], name: str = "Go") -> Program:
    client = go_client()
    if client is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    log = directory / f"{name.replace(' ', '-')}.txt"
    return Program(name, [str(client), "ways"], log, environ)


class AdminTool(_Logged):
    """Pulsar's command line, in a process of its own."""

    name = "pulsar-admin"

    def __init__(self, directory: Path, trust_store: str, password: str) -> None:
        # The tool has no option for the authorities that sign the certificate of an issuer.
        jvm = (
            *SMALL_JVM,
            f"-Djavax.net.ssl.trustStore={trust_store}",
            f"-Djavax.net.ssl.trustStorePassword={password}",
        )
        words = (str(ADMIN), "pulsar://localhost:1", "http://localhost:1")
        command = pulsar_admin_here().command(directory, *words, jvm=jvm)
        super().__init__(directory / "admin.txt")
        self._process = start(command, self._log)

    def ask(self, do: str, **fields: object) -> str:
        """List topics, and ask for the statistics of some: their brokers are redirected to."""
        assert do == "admin"
        self._run("properties", *_properties({k: str(v) for k, v in fields.items()}))
        topics = str(fields["topics"]).split(",")
        commands = [("topics", "list", "public/default")]
        commands += [("topics", "stats", f"persistent://public/default/{each}") for each in topics]
        for command in commands:
            passed, text = self._run(*command)
            if not passed:
                return f"refused {' '.join(text.split())}"
        return f"ok statistics of {len(topics)} topics"

    def _run(self, *words: str) -> tuple[bool, str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        written: list[str] = []
        while (line := line_of(self._process)) not in ("<<ok>>", "<<failed>>"):
            written.append(line)
        return line == "<<ok>>", "\n".join(written)

    def close(self) -> None:
        end(self._process)


def _properties(fields: dict[str, str]) -> list[str]:
    """Return the settings of the tool, as they are in its file client.conf."""
    found = {
        "webServiceUrl": fields["admin_url"],
        "tlsTrustCertsFilePath": fields["trusted"],
        "tlsEnableHostnameVerification": str("verify" not in fields).lower(),
        "tlsAllowInsecureConnection": str(fields.get("verify") == "nothing").lower(),
    }
    way = "org.apache.pulsar.client.impl.auth."
    match fields.get("auth", "none"):
        case "none":
            plugin, params = "", ""
        case "token":
            plugin, params = "AuthenticationToken", f"token:{fields['token']}"
        case "file":
            plugin, params = "AuthenticationToken", f"file://{fields['file']}"
        case "basic":
            plugin = "AuthenticationBasic"
            params = json.dumps({"userId": fields["user"], "password": fields["password"]})
        case "tls":
            plugin = "AuthenticationTls"
            params = f"tlsCertFile:{fields['certificate']},tlsKeyFile:{fields['key']}"
        case "store":
            found["useKeyStoreTls"] = "true"
            found["tlsTrustStoreType"] = "PKCS12"
            found["tlsTrustStorePath"] = fields["trust_store"]
            found["tlsTrustStorePassword"] = fields["store_password"]
            plugin = "AuthenticationKeyStoreTls"
            given = {
                "keyStoreType": "PKCS12",
                "keyStorePath": fields["key_store"],
                "keyStorePassword": fields["store_password"],
            }
            params = json.dumps(given)
        case "oauth2":
            plugin = "oauth2.AuthenticationOAuth2"
            given = {
                "type": "client_credentials",
                "issuerUrl": fields["issuer"],
                "audience": fields["audience"],
                "privateKey": f"file://{fields['key_file']}",
            }
            params = json.dumps(given)
        case other:
            raise ValueError(other)
    if plugin:
        found |= {"authPlugin": way + plugin, "authParams": params}
    return [f"{name}={value}" for name, value in found.items()]


class Reading(typed.Record):  # type: ignore[misc]
    """A client with a schema sends this."""

    sensor = typed.String()
    value = typed.Integer(required=True)


class PythonWays:
    """The client for Python, in this process."""

    name = "Python"
    log_size = 0

    def log_from(self, size: int) -> str:
        """Return nothing: its log is the standard error."""
        return ""

    def ask(self, do: str, **fields: object) -> str:
        """Return the answer to a request."""
        try:
            return f"ok {_Request({k: str(v) for k, v in fields.items()}).serve(do)}"
        except pulsar.PulsarException as error:
            return f"refused {type(error).__name__} {error}"

    def close(self) -> None:
        """Nothing is open between requests."""


class _Request:
    def __init__(self, fields: dict[str, str]) -> None:
        self._fields = fields
        self._supplied = 0
        self._open = ExitStack()
        self._client: Any = None

    def serve(self, do: str) -> str:
        serve: Callable[[], str] = getattr(self, do)
        with self._open:
            self._client = self._connected()
            self._open.enter_context(closing(self._client))
            return serve()

    def _connected(self) -> Any:
        fields = self._fields
        return pulsar.Client(
            fields["url"],
            authentication=self._authentication(),
            tls_trust_certs_file_path=fields["trusted"],
            tls_validate_hostname="verify" not in fields,
            tls_allow_insecure_connection=fields.get("verify") == "nothing",
            operation_timeout_seconds=int(fields["timeout"]),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def _authentication(self) -> Any:
        fields = self._fields
        match fields.get("auth", "none"):
            case "none":
                return None
            case "token":
                return pulsar.AuthenticationToken(fields["token"])
            case "file":
                return pulsar.Authentication("token", f"file://{fields['file']}")
            case "supplier":
                return pulsar.AuthenticationToken(self._supply)
            case "basic":
                return pulsar.AuthenticationBasic(fields["user"], fields["password"])
            case "tls":
                return pulsar.AuthenticationTLS(fields["certificate"], fields["key"])
            case "oauth2":
                given = {
                    "issuer_url": fields["issuer"],
                    "private_key": fields["key_file"],
                    "audience": fields["audience"],
                }
                return pulsar.AuthenticationOauth2(json.dumps(given))
            case other:
                raise ValueError(other)

    def _supply(self) -> str:
        self._supplied += 1
        return Path(self._fields["file"]).read_text().strip()

    def _subscribe(self, topic: Any, **options: Any) -> Any:
        name = self._fields["subscription"]
        return self._open.enter_context(closing(self._client.subscribe(topic, name, **options)))

    def _producer(self, topic: str, **options: Any) -> Any:
        return self._open.enter_context(closing(self._client.create_producer(topic, **options)))

    def exchange(self) -> str:
        count = 0
        for topic in self._fields["topics"].split(","):
            consumer, producer = self._subscribe(topic), self._producer(topic)
            for size in _SIZES:
                producer.send(b"x" * size)
                message = consumer.receive(_MS)
                assert len(message.data()) == size
                consumer.acknowledge(message)
                count += 1
        return f"{count} messages"

    def produce(self) -> str:
        self._producer(self._fields["topic"]).send(b"x")
        return "stored"

    def consume(self) -> str:
        self._subscribe(self._fields["topic"])
        return "subscribed"

    def partitions(self) -> str:
        topic = self._fields["topic"]
        partitions = self._client.get_topic_partitions(topic)
        consumer, producer = self._subscribe(topic), self._producer(topic)
        for number in range(10):
            producer.send(bytes([number]))
        found = _received(consumer, 10)
        return f"{len(partitions)} partitions, {len(found)} messages"

    def pattern(self) -> str:
        consumer = self._subscribe(
            re.compile(self._fields["pattern"]),
            initial_position=pulsar.InitialPosition.Earliest,
        )
        found = _received(consumer, int(self._fields["count"]))
        return " ".join(sorted(each.topic_name().rpartition("/")[2] for each in found))

    def schema(self) -> str:
        schema = typed.JsonSchema(Reading)
        topic = self._fields["topic"]
        consumer = self._subscribe(topic, schema=schema)
        self._producer(topic, schema=schema).send(Reading(sensor="s", value=7))
        (message,) = _received(consumer, 1)
        return f"{message.value().sensor} {message.value().value}"

    def stay(self) -> str:
        fields = self._fields
        consumer = self._subscribe(fields["topic"])
        producer = self._producer(
            fields["topic"], send_timeout_millis=int(fields["timeout"]) * 1000
        )
        stored: set[int] = set()
        got: set[int] = set()
        failed, repeated = "", 0
        over = threading.Event()
        clock = threading.Timer(float(fields["seconds"]), over.set)
        clock.start()
        number = 0
        while not over.is_set() and not failed:
            try:
                producer.send(b"%d" % number)
            except pulsar.PulsarException as error:
                failed = type(error).__name__
                break
            stored.add(number)
            number += 1
            repeated += _take(consumer, got, 20)
        clock.cancel()
        while not failed and stored > got:
            before = len(got)
            repeated += _take(consumer, got, 10_000)
            if len(got) == before:
                break
        return (
            f"stored={len(stored)} received={len(got)} repeated={repeated} failed={{{failed}}}"
            f" supplied={self._supplied}"
        )


def _received(consumer: Any, count: int) -> list[Any]:
    found = [consumer.receive(_MS) for _ in range(count)]
    for message in found:
        consumer.acknowledge(message)
    return found


def _take(consumer: Any, got: set[int], patience_ms: int) -> int:
    try:
        message = consumer.receive(patience_ms)
    except pulsar.Timeout:
        return 0
    number = int(message.data())
    repeated = number in got
    got.add(number)
    consumer.acknowledge(message)
    return int(repeated)
