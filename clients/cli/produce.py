"""`daybook produce`: send each line of standard input, or of a file, as a message.

    seq 1000 | daybook produce numbers
    daybook produce orders --key-separator , orders.csv

Lines are sent as they come, and the command ends when all are stored.  The first line that cannot
be stored ends the command with exit code 1, and the error names the line from which to send again.
On Ctrl-C the lines that were read are still sent.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import click
import trio

from daybook.clients.cli.broker_client import (
    LIMITS,
    PATIENCE_S,
    attach,
    brokers_at,
    error_sentence,
    parse_topic,
)
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import client_arguments, service_url_option
from daybook.clients.cli.output import counted
from daybook.clients.cli.progress import Waiting, report_waiting
from daybook.clients.cli.run import run_async, until_signal
from daybook.clients.python.arguments import Compression
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import (
    BrokerError,
    Outcome,
    QueueFullError,
    RequestTimedOutError,
)
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.producer import Producer

_CHUNK_BYTES = 1 << 18
_LINE_BYTES_MAX = 32 << 20  # no broker accepts a message of this size
_LEAVE_S = 5.0  # after Ctrl-C, to send the lines that were read
_AHEAD_S = 0.002  # `--rate` makes no shorter pauses
_DEFAULT_DELAY_MS = 1.0


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Split each line at the first TEXT: the key is before it, the value behind it. A line"
    " without TEXT has no key.  [default: no line has a key]",
)
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="A property of each message; may be given more than once.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zlib", "zstd", "snappy"]),
    default="none",
    show_default=True,
    help="How batches are compressed. Brokers and bookies keep them compressed; consumers"
    " decompress them.",
)
@click.option(
    "--batch-delay",
    metavar="MS",
    type=click.FloatRange(min=0),
    default=_DEFAULT_DELAY_MS,
    show_default=True,
    help="How long a batch waits for more messages.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help="Send at most N messages a second.",
)
@service_url_option
@click.pass_context
def produce(
    context: click.Context,
    topic: str,
    file: str,
    key_separator: str | None,
    properties: Sequence[str],
    compression: Compression,
    batch_delay: float,
    rate: float | None,
    service_url: str,
) -> None:
    """Send each line of standard input, or of FILE, to TOPIC as a message.

    \b
    seq 1000 | daybook produce numbers
    daybook produce orders --key-separator , orders.csv
    """
    if key_separator == "":
        raise click.BadParameter("it is empty.", param_hint="--key-separator")
    options = _Options(
        parse_topic(topic).full,
        key_separator.encode() if key_separator is not None else None,
        _parse_properties(properties) or None,
        compression,
        batch_delay / 1000,
        rate,
    )
    tally = _Tally()
    with ExitStack() as stack:
        if file == "-":
            source = sys.stdin.fileno()
        else:
            source = os.open(file, os.O_RDONLY)
            stack.callback(os.close, source)
        received = run_async(
            lambda: _produce(service_url, options, _LineReader(source), tally),
            lambda error: error_sentence(error, service_url, "--service-url"),
        )
    click.echo(tally.summary(options.topic), err=True)
    if tally.resolved < tally.taken or tally.failure is not None:
        raise UserError(tally.complaint())
    if received is not None:
        context.exit(128 + received)


@dataclass(frozen=True, slots=True)
class _Options:
    topic: str
    key_separator: bytes | None
    properties: Mapping[str, str] | None  # None is faster than an empty mapping
    compression: Compression
    batch_delay_s: float
    rate: float | None


def _parse_properties(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE.", param_hint="--property")
        found[name] = value
    return found


class _Tally:
    """Counts the lines that were sent, stored and refused."""

    def __init__(self) -> None:
        self.taken = 0
        self.stored = 0
        self.bytes = 0
        self.seconds = 0.0
        self.failure: tuple[int, BrokerError] | None = None  # the first failed line and its error
        self.resolved = 0

    def settle(self, line: int, message_id: MessageId | None, error: BrokerError | None) -> None:
        self.resolved += 1
        assert self.resolved <= self.taken + 1, "one result for each line, the current one included"
        if error is None:
            self.stored += 1
        elif self.failure is None or line < self.failure[0]:
            self.failure = line, error

    def summary(self, topic: str) -> str:
        rate = self.stored / self.seconds if self.seconds else 0.0
        return (
            f"{counted(self.stored, 'message')} stored in {topic}: {self.bytes:,} bytes read, "
            f"{self.seconds:.2f} s, {rate:,.0f} messages/s"
        )

    def complaint(self) -> str:
        if self.failure is None:
            return (
                f"{self.taken - self.resolved} of {self.taken} lines were not confirmed in time: "
                "they may or may not be stored. `daybook bookies health` says if enough bookies"
                " take entries."
            )
        line, error = self.failure
        late = isinstance(error, RequestTimedOutError)
        doubt = "may not be" if error.outcome is Outcome.UNKNOWN else "was not"
        return (
            f"Line {line} {doubt} stored ({error}); of {self.taken} lines that were read "
            f"{self.stored} are. Send again from there: tail -n +{line}."
            + (" `daybook bookies health` says if enough bookies take entries." if late else "")
        )


async def _produce(
    service_url: str, options: _Options, source: "_LineReader", tally: _Tally
) -> int | None:
    """Send everything; return the signal that ended it, if one did."""
    began = trio.current_time()
    async with connect(
        service_url,
        timeout_s=None,
        limits=LIMITS,
        **client_arguments(service_url),
    ) as client:
        received = await until_signal(partial(_send_all, client, options, source, tally))
        if received is not None:
            with trio.move_on_after(_LEAVE_S):
                await client.aclose()
            client.abandon()
    tally.seconds = trio.current_time() - began
    return received


async def _send_all(
    client: Client, options: _Options, source: "_LineReader", tally: _Tally
) -> None:
    async def create() -> Producer[bytes]:
        return await client.create_producer(
            options.topic,
            compression=options.compression,
            batch_delay_s=options.batch_delay_s,
            send_timeout_s=PATIENCE_S,
        )

    producer = await attach(client, create)
    pace = _Pace(options.rate)
    async with report_waiting(_Receipts(client, tally).waits):
        while tally.failure is None and (lines := await source.next()):
            for line in lines:
                if pace.is_ahead(tally.taken):
                    await pace.wait(tally.taken)
                if not await _send(producer, line, options, tally):
                    break
        await producer.flush()


async def _send(producer: Producer, line: bytes, options: _Options, tally: _Tally) -> bool:
    """Send one line; return False if a line has failed, and the rest is not to be sent."""
    number = tally.taken + 1
    key, value = _split(line, options.key_separator)
    while tally.failure is None:
        try:
            producer.send_nowait(
                value,
                key=key,
                properties=options.properties,
                on_result=partial(tally.settle, number),
            )
        except QueueFullError:
            await producer.wait_room()
            continue
        except BrokerError as error:
            tally.settle(number, None, error)
        tally.taken = number
        tally.bytes += len(line) + 1
        return tally.failure is None
    return False


def _split(line: bytes, separator: bytes | None) -> tuple[str | bytes | None, bytes]:
    """Return key and value of a line; None for a missing or empty key."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        return None, line
    if not key:
        return None, value
    try:
        return key.decode(), value
    except UnicodeDecodeError:
        return key, value


class _LineReader:
    """Reads lines as they come, in a thread, so that other tasks run meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = bytearray()  # the beginning of an incomplete line
        self._lines = 0

    async def next(self) -> list[bytes]:
        """Return at least one line, without its line break; [] at the end."""
        while chunk := await self._read():
            if b"\n" not in chunk:
                self._rest += chunk
                if len(self._rest) > _LINE_BYTES_MAX:
                    raise UserError(
                        f"Line {self._lines + 1} is longer than any message may be: "
                        f"{_LINE_BYTES_MAX >> 20} MB without a line break."
                    )
                continue
            *lines, rest = (bytes(self._rest) + chunk).split(b"\n")
            self._rest = bytearray(rest)
            self._lines += len(lines)
            return lines
        last, self._rest = bytes(self._rest), bytearray()
        return [last] if last else []

    async def _read(self) -> bytes:
        try:
            return await trio.to_thread.run_sync(
                os.read, self._fd, _CHUNK_BYTES, abandon_on_cancel=True
            )
        except OSError as error:
            raise UserError(f"The input cannot be read: {error.strerror}.") from error


class _Receipts:
    """Tells `report_waiting` when no receipt has come since its last look."""

    def __init__(self, client: Client, tally: _Tally) -> None:
        self._client = client
        self._tally = tally
        self._brokers = brokers_at(client.service_url)
        self._resolved = -1
        self._until = 0.0

    def waits(self) -> Waiting | None:
        waiting = self._tally.taken - self._tally.resolved
        if waiting == 0 or self._tally.resolved != self._resolved:
            self._resolved = self._tally.resolved
            self._until = trio.current_time() + PATIENCE_S
            return None
        what = f"{waiting:,} receipts from {self._brokers}"
        return Waiting(what, self._until, self._client.trouble)


class _Pace:
    """Limits the rate: at most `rate` messages a second on average since the start."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = trio.current_time()

    def is_ahead(self, sent: int) -> bool:
        return self._rate is not None and self._due(sent) > trio.current_time() + _AHEAD_S

    async def wait(self, sent: int) -> None:
        await trio.sleep_until(self._due(sent))

    def _due(self, sent: int) -> float:
        assert self._rate is not None
        return self._began + sent / self._rate
