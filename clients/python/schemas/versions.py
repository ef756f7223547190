"""Which version of its schema a message was written with: one instance per consumer or reader.

A message names its version, and the broker is asked for it once.  The consumer waits for the answer
before it hands out the message.  The wait ignores a cancellation, because the message has left the
queue already, so it is short; if there is no answer in that time, the message is handed out all the
same, its `value` raises UnavailableError, and the next message of the version asks again.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import trio

from daybook.clients.python.errors import BrokerError, TopicNotFoundError, UnavailableError
from daybook.clients.python.schemas.schema import PairDecoder, Schema, SchemaInfo, check_schema

Ask: TypeAlias = Callable[[bytes], Awaitable[SchemaInfo]]
"""Asks the broker for a version."""
Decode: TypeAlias = Callable[[bytes], Any] | PairDecoder[Any]

_VERSIONS_MAX = 1_000
_PATIENCE_S = 3.0


class VersionDecoder:
    """Decodes the messages of one version, as soon as the version is known."""

    __slots__ = ("_failure", "decode", "decode_pair", "ready", "version")

    def __init__(self, version: bytes, decode: Decode | None) -> None:
        self.version = version
        self.ready = False
        self.decode: Callable[[bytes], Any] = self._fail
        # Set instead of `decode` if a part of the value is the key of the message.
        self.decode_pair: Callable[[bytes | None, bytes | None], Any] | None = None
        self._failure: Exception = UnavailableError(
            "the schema of the message is not known yet: receive it before you look at its value"
        )
        if decode is not None:
            self.found(decode)

    def found(self, decode: Decode) -> None:
        self.ready = True
        if isinstance(decode, PairDecoder):
            self.decode_pair = decode.decode_pair
        else:
            self.decode = decode

    def failed(self, failure: Exception) -> None:
        self._failure = failure

    def _fail(self, data: bytes) -> Any:  # noqa: ANN401  any type of value
        del data
        raise self._failure


class SchemaVersions:
    """The decoders of all versions that were met."""

    def __init__(self, schema: Schema[Any]) -> None:
        check_schema(schema)
        self.schema = schema
        self._plain = VersionDecoder(b"", schema.decoder())
        self._decoders: dict[tuple[str, bytes], VersionDecoder] = {}
        self.unknown = 0  # versions that `load` has to ask for, or more

    def decoder(self, topic: str, version: bytes) -> VersionDecoder:
        """Return the decoder of messages with this version; b"" for those that name none.

        `topic` is the whole topic, not a partition: partitions share their schemas.
        """
        if not version or not self.schema.needs_writer:
            return self._plain
        found = self._decoders.get((topic, version))
        if found is None:
            if len(self._decoders) >= _VERSIONS_MAX:
                del self._decoders[next(iter(self._decoders))]
            found = self._decoders[topic, version] = VersionDecoder(version, None)
            self.unknown += 1
        return found

    async def load(self, missing: Iterable[tuple[VersionDecoder, Ask]]) -> None:
        """Ask for versions that are not known yet."""
        with trio.move_on_after(_PATIENCE_S, shield=True):
            for decoder, ask in missing:
                if not decoder.ready:
                    await self._load(decoder, ask)

    async def _load(self, decoder: VersionDecoder, ask: Ask) -> None:
        number = int.from_bytes(decoder.version, "big")
        try:
            writer = await ask(decoder.version)
        except TopicNotFoundError:
            decoder.failed(
                ValueError(
                    f"the message was written with version {number} of the schema, which was"
                    " deleted"
                )
            )
        except BrokerError as error:
            failure = UnavailableError(
                f"version {number} of the schema cannot be read now, so the message cannot be"
                f" decoded: {error}"
            )
            failure.__cause__ = error
            decoder.failed(failure)
        else:
            self._read(decoder, writer)

    def _read(self, decoder: VersionDecoder, writer: SchemaInfo) -> None:
        try:
            decoder.found(self.schema.decoder_of(writer))
            self.unknown -= 1
        except Exception as error:
            # A schema of the application, or a library, may raise any error about a definition.
            # The message has left the queue, and would be lost.  Its `value` raises the error.
            decoder.failed(error)
