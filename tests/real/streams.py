"""Producers and consumers of several roles that go on while a test exchanges what lets them in.

    stream = Stream("alice", "topic", partial(OwnClient, ...))
    ... the test exchanges keys, certificates, tokens, rights ...
    stream.finish()        # raises AssertionError unless each message is there once, in order

A stream sends numbers, one after the other, and acknowledges each that comes.  It gives up nothing
and repeats nothing by itself: each error that a client shows is a failure.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pulsar

from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions

PATIENCE_S = 120.0
_STEP_S = 0.01


class Connected(Protocol):
    """A client with a producer and a consumer of one topic."""

    def send(self, body: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the next message, acknowledged; None if none comes in time."""
        ...

    def close(self) -> None: ...


class OwnClient:
    """Daybook's client.  `credentials` are options of `connect`."""

    def __init__(self, url: str, tls: TlsOptions, topic: str, **credentials: Any) -> None:
        self._client = blocking.connect(url, tls=tls, **credentials)
        try:
            self._consumer = self._client.subscribe(topic, "s", initial_position="earliest")
            self._producer = self._client.create_producer(topic)
        except BaseException:
            self._client.close()
            raise

    def send(self, body: bytes) -> None:
        self._producer.send(body)

    def receive(self, timeout_s: float) -> bytes | None:
        try:
            message = self._consumer.receive(timeout_s)
        except TimeoutError:
            return None
        self._consumer.ack(message)
        return message.data

    def close(self) -> None:
        self._client.close()


class OfficialClient:
    """Pulsar's client for Python."""

    def __init__(self, url: str, trusted: Path, topic: str, authentication: Any) -> None:
        self._client = pulsar.Client(
            url,
            authentication=authentication,
            tls_trust_certs_file_path=str(trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=int(PATIENCE_S),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            self._consumer = self._client.subscribe(
                topic, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            self._producer = self._client.create_producer(
                topic, send_timeout_millis=int(PATIENCE_S * 1000)
            )
        except BaseException:
            self._client.close()
            raise

    def send(self, body: bytes) -> None:
        self._producer.send(body)

    def receive(self, timeout_s: float) -> bytes | None:
        try:
            message = self._consumer.receive(int(timeout_s * 1000))
        except pulsar.Timeout:
            return None
        self._consumer.acknowledge(message)
        found: bytes = message.data()
        return found

    def close(self) -> None:
        self._client.close()


class Stream:
    """Goes on from the constructor until `finish`."""

    def __init__(self, name: str, open_client: Callable[[], Connected]) -> None:
        self.name = name
        self.sent = 0
        self.received: list[int] = []
        self.failures: list[BaseException] = []
        self._client = open_client()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        try:
            while not self._over.wait(_STEP_S):
                self._client.send(b"%d" % self.sent)
                self.sent += 1
        except Exception as error:
            self.failures.append(error)

    def _receive(self) -> None:
        last_s = time.monotonic()
        try:
            while not self.failures and time.monotonic() < last_s + PATIENCE_S:
                if self._over.is_set() and len(set(self.received)) >= self.sent:
                    return
                body = self._client.receive(0.5)
                if body is not None:
                    self.received.append(int(body))
                    last_s = time.monotonic()
        except Exception as error:
            self.failures.append(error)

    def is_past(self, sent: int) -> bool:
        """Return True if the stream has sent so many messages, and raise what has failed."""
        assert not self.failures, (self.name, self.failures)
        return self.sent >= sent

    def stop(self) -> None:
        """End the threads and the client, once."""
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def finish(self) -> None:
        """End the stream, and check that each message has come, in order, and no other."""
        self.stop()
        assert not self.failures, (self.name, self.failures)
        firsts = list(dict.fromkeys(self.received))
        assert firsts == list(range(self.sent)), (self.name, self.sent, firsts[-3:])
