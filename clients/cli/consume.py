"""`daybook consume`: write the messages of a topic to standard output, one a line.

    daybook consume numbers --from earliest -n 1000 | sort -n | tail -1
    daybook consume orders --subscription billing --print-key

Without `--subscription` nothing is committed: reading starts where `--from` says.  With it, a
message is acknowledged once it is written, and not before.  The command ends silently after `-n`
messages, behind the last message of a terminated topic, on Ctrl-C, or when nobody reads its output
any more.  If no message has come after two seconds, it reports once on standard error what it waits
for.
"""

import json
import os
import stat
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias

import click
import trio

from daybook.clients.cli.broker_client import (
    LIMITS,
    attach,
    brokers_at,
    error_sentence,
    parse_topic,
)
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import client_arguments, service_url_option
from daybook.clients.cli.places import past_time
from daybook.clients.cli.progress import Waiting, report_waiting
from daybook.clients.cli.run import run_async, until_signal
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import BrokerError, CorruptMessageError, TopicNotFoundError
from daybook.clients.python.messages import Message
from daybook.clients.python.reader import OffsetRange, Reader

_BATCH_MAX = 1000
_LEAVE_S = 5.0  # after a signal, to send the last acknowledgements
_SILENCE_S = 2.0  # after which a command that got no message says what it waits for
_DEFAULT_SEPARATOR = "\t"

Position: TypeAlias = Literal["earliest", "latest"] | int | datetime
Format: TypeAlias = Callable[[Message], bytes]


def _position(context: click.Context, parameter: click.Parameter, value: str) -> Position:
    match value:
        case "earliest" | "latest":
            return value
        case _ if value.isdecimal():
            return int(value)
        case _:
            return past_time(value, "not earliest, latest, an offset")


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    callback=_position,
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to start; a TIME is 2026-11-22T10:00Z, or an age such as 2h. An existing"
    " subscription continues at its position instead.",
)
@click.option("-n", "count", metavar="N", type=click.IntRange(1), help="End after N messages.")
@click.option(
    "--subscription",
    metavar="NAME",
    help="Consume from this subscription, which is created if it does not exist, and acknowledge"
    " (commit) each message once it is written.  [default: none; nothing is committed]",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(["exclusive", "failover", "shared", "key_shared"]),
    default="exclusive",
    show_default=True,
    help="How the consumers of the subscription share its messages. exclusive: there is one"
    " consumer, and a second one is refused. failover: one consumer gets all messages, and another"
    " one takes over when it leaves. shared: each message goes to one of the consumers, in no"
    " particular order. key_shared: the messages of one key go to one of the consumers, in order.",
)
@click.option("--print-key", is_flag=True, help="Write the key and a separator first.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    default=_DEFAULT_SEPARATOR,
    help="What --print-key writes between key and value.  [default: a tab]",
)
@click.option(
    "--output",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="lines: the data alone. json: each message as an object with all its fields.",
)
@service_url_option
@click.pass_context
def consume(
    context: click.Context,
    topic: str,
    start: Position,
    count: int | None,
    subscription: str | None,
    kind: SubscriptionTypeName,
    print_key: bool,
    key_separator: str,
    output: str,
    service_url: str,
) -> None:
    """Write the messages of TOPIC to standard output, one a line.

    Without --subscription nothing is committed: each run starts where --from says, and other
    consumers do not notice it.  With --subscription the broker remembers which messages were
    acknowledged, as for a consumer group: the next run goes on behind them.

    \b
    daybook consume numbers --from earliest -n 1000
    daybook consume orders --subscription billing --print-key
    """
    if subscription is not None and not isinstance(start, str):
        raise UserError(
            "A subscription starts at --from earliest or latest; to read from elsewhere, leave out "
            "--subscription."
        )
    if subscription is None and _is_given(context, "kind"):
        raise UserError("--type applies to a subscription: name one with --subscription.")
    if output == "json":
        form: Format = _as_json
    else:
        form = partial(_as_line, key_separator.encode() if print_key else None)
    options = _Options(parse_topic(topic).full, start, count, subscription, kind, form)
    copier = _Copier(options, sys.stdout.fileno())
    received = run_async(
        lambda: _consume(service_url, options, copier),
        lambda error: error_sentence(error, service_url, "--service-url"),
    )
    if received is not None:
        context.exit(128 + received)
    if copier.skipped:
        raise UserError(f"{copier.skipped} messages could not be read and were left out.")


def _is_given(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


# -- the format of a message


def _as_line(separator: bytes | None, message: Message) -> bytes:
    value = message.data or b""
    if separator is None:
        return value
    return (message.key_bytes or b"") + separator + value


def _as_json(message: Message) -> bytes:
    record: dict[str, object] = {
        "topic": message.topic,
        "offset": message.offset,
        "id": str(message.message_id),
        "key": message.key,
        **_value(message.data),
        "properties": dict(message.properties),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "redelivery_count": message.redelivery_count,
    }
    return json.dumps(record).encode()


def _value(data: bytes | None) -> dict[str, str | None]:
    """Return the value as text or base64; None for a tombstone."""
    if data is None:
        return {"value": None}
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(data).decode()}


# -- from the topic to the output


@dataclass(frozen=True, slots=True)
class _Options:
    topic: str
    start: Position
    count: int | None
    subscription: str | None
    kind: SubscriptionTypeName
    form: Format


async def _consume(service_url: str, options: _Options, copier: "_Copier") -> int | None:
    """Copy messages until the end; return the signal that ended it, if one did."""
    async with connect(
        service_url,
        timeout_s=None,
        limits=LIMITS,
        **client_arguments(service_url),
    ) as client:
        received = await until_signal(partial(copier.run, client))
        if received is None:
            if copier.consumer is not None:
                await copier.consumer.flush_acks()
        else:
            with trio.move_on_after(_LEAVE_S):
                await client.aclose()
            client.abandon()
    return received


class _Copier:
    """Receives messages and writes them to the output."""

    def __init__(self, options: _Options, output: int) -> None:
        self._options = options
        self._output = output
        self.consumer: Consumer | None = None
        self.skipped = 0
        self._created = False  # the topic did not exist before
        self._received = False  # at least one message

    async def run(self, client: Client) -> None:
        """Copy until `count` messages are written, the topic ends, or nobody reads the output."""
        source = await attach(client, partial(self._open, client))
        brokers = brokers_at(client.service_url)

        def waits() -> Waiting | None:
            """Return what the command waits for.  The client looks for its brokers without end."""
            trouble = client.trouble
            return None if trouble is None else Waiting(brokers, None, trouble)

        async with report_waiting(waits), trio.open_nursery() as nursery:
            if _tells_of_its_end(self._output):
                nursery.start_soon(self._wait_unread, nursery.cancel_scope)
            nursery.start_soon(self._explain_silence, client, source)
            await self._copy(source)
            nursery.cancel_scope.cancel()

    async def _explain_silence(self, client: Client, source: Consumer | Reader) -> None:
        """If no message comes for a while, say once what is waited for."""
        await trio.sleep(_SILENCE_S)
        if self._received:
            return
        held: list[OffsetRange] = []
        # Without the offsets the line says less.  If no broker answers, `run` says so.
        with suppress(BrokerError):
            if isinstance(source, Reader):
                held = await source.offset_ranges()
            else:
                held = await client.offset_ranges(self._options.topic)
        if not self._received:
            click.echo(_silence(self._options, held, created=self._created), err=True)

    async def _open(self, client: Client) -> Consumer | Reader:
        options = self._options
        try:
            await client.partitions(options.topic, create=False)
        except TopicNotFoundError:
            self._created = True  # by the subscription below, unless the broker refuses that, too
        if options.subscription is not None:
            self.consumer = await client.subscribe(
                options.topic,
                options.subscription,
                type=options.kind,
                initial_position="earliest" if options.start == "earliest" else "latest",
            )
            return self.consumer
        if isinstance(options.start, int) and await client.partitions(options.topic):
            raise UserError(
                f"{options.topic} has partitions, and each has its own offsets: to read from an "
                f"offset, name one, such as {options.topic}-partition-0."
            )
        return await client.create_reader(options.topic, start=options.start)

    async def _copy(self, source: Consumer | Reader) -> None:
        left = self._options.count
        while left is None or left > 0:
            count_max = _BATCH_MAX if left is None else min(left, _BATCH_MAX)
            try:
                messages = await source.receive_batch(count_max)
            except CorruptMessageError as error:
                self.skipped += 1
                self._received = True
                click.echo(f"left out: {error}", err=True)
                continue
            self._received = True
            if not messages or not await self._write(messages):
                return
            if self.consumer is not None:
                # Only now: messages that the pipe did not take are delivered again.
                self.consumer.ack_nowait(messages)
            if left is not None:
                left -= len(messages)
                assert left >= 0, "no more messages than asked for"

    async def _write(self, messages: list[Message]) -> bool:
        """Write to the output; return False if nobody reads it any more.

        A thread writes, so that a slow reader does not block acknowledgements and pings.
        """
        form = self._options.form
        data = b"".join([form(message) + b"\n" for message in messages])
        try:
            await trio.to_thread.run_sync(_write_all, self._output, data, abandon_on_cancel=True)
        except BrokenPipeError:
            return False
        except OSError as error:
            raise UserError(f"The messages cannot be written: {error.strerror}.") from error
        return True

    async def _wait_unread(self, scope: trio.CancelScope) -> None:
        """Cancel when the reading end of the pipe is closed: the writing end is readable then."""
        await trio.lowlevel.wait_readable(self._output)
        scope.cancel()


def _silence(options: _Options, held: list[OffsetRange], *, created: bool) -> str:
    """Return a line on what the command waits for, and why no message has come."""
    stored = sum(each.next - each.first for each in held)
    what, why = f"messages in {options.topic}", ""
    if options.subscription is not None:
        what = f"messages of the subscription {options.subscription} in {options.topic}"
    if created:
        why = "The topic did not exist and was created."
    elif held and not stored:
        why = "The topic holds no messages."
    elif isinstance(options.start, int) and held and options.start >= held[0].next:
        first, last = held[0].first, held[0].next - 1
        why = f"The topic holds the offsets {first} to {last}: {options.start} is beyond the end."
    elif held and options.subscription is not None:
        why = f"The topic holds {stored:,}, and none of them is to be delivered now."
    elif held and options.start == "latest":
        why = f"The topic holds {stored:,}, which --from earliest reads."
    if isinstance(options.start, int):
        what += f" from offset {options.start} on"
    elif isinstance(options.start, datetime):
        what += f" from {options.start.isoformat(timespec='seconds')} on"
    return f"Waiting for {what}. {why}".rstrip()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _tells_of_its_end(fd: int) -> bool:
    return sys.platform == "linux" and stat.S_ISFIFO(os.fstat(fd).st_mode)
