"""Apache's client and tools, in a JVM behind a pipe: `java/Peer.java` lists the commands.

    peer = Peer(apache, directory)
    client = peer.connect(cluster, "v2")
    ledger = client.create(digest="CRC32C")
    ledger.append(100, size=1000)

Payloads are those of `payload`; the other side checks the entries that it reads, as `check` does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from select import select
from typing import Literal, TypeAlias

from daybook.clients.ledgers import Entry
from daybook.managed_ledger.position import Position
from tests.harness.processes import PATIENCE_S, Process, end, start
from tests.interop.apache import SMALL_JVM, Apache
from tests.interop.cluster import SESSION_S, Cluster

Wire: TypeAlias = Literal["v2", "v3"]

SOURCE = Path(__file__).parent / "java" / "Peer.java"
PULSAR_SOURCE = SOURCE.with_name("Pulsar.java")
PULSAR_JVM = ("-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
DIGESTS = {"crc32c": "CRC32C", "crc32": "CRC32", "hmac": "MAC", "none": "DUMMY"}
_BYTES = bytes(range(256))


def payload(entry_id: int, size: int) -> bytes:
    start_at = 31 * entry_id % 256
    return (_BYTES * (size // 256 + 2))[start_at : start_at + size]


def check(entries: Iterable[Entry], first: int, size: int) -> int:
    """Check that each entry is as it was appended; return their number."""
    number = 0
    for number, entry in enumerate(entries, 1):
        assert entry.entry_id == first + number - 1
        assert entry.data == payload(entry.entry_id, size), entry.entry_id
    return number


class PeerError(Exception):
    """The error of Apache's client: its code (0: it has none), and its text."""

    def __init__(self, command: str, answer: str) -> None:
        super().__init__(f"{command}: {answer}")
        self.code = int(answer.split()[1])


class Pipe:
    """A child process that answers commands: one line for each, one after the other."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._asked = ""

    def ask(self, *words: object) -> str:
        """Return the answer, without its "ok"; raise PeerError for any other."""
        self.tell(*words)
        return self.answer()

    def tell(self, *words: object) -> None:
        """Send a command; `answer` must follow."""
        assert self.process.stdin is not None
        self._asked = " ".join(map(str, words))
        self.process.stdin.write(self._asked + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        if not select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"no answer to: {self._asked}")
        answer = self.process.stdout.readline().rstrip("\n")
        if not answer.startswith("ok"):
            raise PeerError(self._asked, answer or "error 0 the child has ended")
        return answer.removeprefix("ok").strip()

    def close(self) -> None:
        end(self.process)


class Peer(Pipe):
    def __init__(self, apache: Apache, directory: Path, jvm: Sequence[str] = SMALL_JVM) -> None:
        command = apache.command(directory, str(SOURCE), jvm=jvm)
        super().__init__(start(command, directory / "peer.txt"))
        self._serial = count()

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._serial)}"

    def init(self, cluster: Cluster) -> None:
        """Create the records of a cluster in ZooKeeper, as Apache's tools do."""
        assert self.ask("init", cluster.java_uri) == "true"

    def connect(self, cluster: Cluster, wire: Wire, **settings: object) -> "PeerClient":
        name = self.name("client")
        settings = {"zkTimeout": SESSION_S * 1000} | settings
        options = (f"{key}={value}" for key, value in settings.items())
        self.ask("connect", name, cluster.java_uri, wire, *options)
        return PeerClient(self, name)

    def shell(self, cluster: Cluster, *words: object) -> str:
        """Return the output of `bookkeeper shell WORDS`, which must succeed."""
        code, _, said = self.ask("shell", cluster.java_uri, *words).partition(" ")
        assert code == "0", said
        return said.replace("|", "\n")


@dataclass(frozen=True, slots=True)
class Delivered:
    """The position of a Pulsar cursor when it was opened, and the entries it read to the end."""

    mark_delete: Position
    positions: list[Position]


class PulsarPeer(Pipe):
    """Pulsar's managed ledgers: `java/Pulsar.java`."""

    def __init__(self, pulsar: Apache, directory: Path) -> None:
        command = pulsar.command(directory, str(PULSAR_SOURCE), jvm=PULSAR_JVM)
        super().__init__(start(command, directory / "pulsar.txt"))

    def positions(self, records: Iterable[bytes], directory: Path) -> list[str]:
        """Return Pulsar's reading of each record: "refused", or ledger, entry, ranges,
        properties.
        """
        given, taken = directory / "records", directory / "positions"
        with given.open("wb") as file:
            count = sum(1 for r in records if file.write(len(r).to_bytes(4, "big") + r))
        assert int(self.ask("positions", given, taken)) == count
        return taken.read_text().splitlines()

    def open(self, cluster: Cluster, log: str, cursor: str) -> Delivered:
        """Open a topic as a broker of Pulsar does after ours is gone."""
        first, *others = self.ask(
            "open", cluster.zookeeper.address, cluster.java_uri, log, cursor
        ).split()
        return Delivered(_position(first), list(map(_position, others)))

    def properties(
        self, zookeeper: str, uri: str, log: str, cursor: str
    ) -> tuple[Position, dict[str, int]]:
        """Return the position and the properties of a cursor, as a broker of Pulsar reads them."""
        first, *others = self.ask("properties", zookeeper, uri, log, cursor).split()
        pairs = (text.rpartition("=") for text in others)
        return _position(first), {name: int(number) for name, _, number in pairs}

    def mark(
        self, zookeeper: str, uri: str, log: str, cursor: str, properties: dict[str, int]
    ) -> Position:
        """Move a cursor to the end of its topic, with properties, as a broker of Pulsar does."""
        pairs = (f"{name}={number}" for name, number in properties.items())
        return _position(self.ask("mark", zookeeper, uri, log, cursor, *pairs))


def _position(text: str) -> Position:
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))


@dataclass(frozen=True, slots=True)
class PeerClient:
    peer: Peer
    name: str

    def create(
        self,
        *options: str,
        digest: str = "CRC32C",
        password: str = "pw",
        quorums: tuple[int, int, int] = (3, 3, 2),
    ) -> "PeerWriter":
        handle = self.peer.name("writer")
        answer = self.peer.ask(
            "create", self.name, handle, digest, password or "-", *quorums, *options
        )
        return PeerWriter(self.peer, handle, int(answer))

    def open(
        self, ledger_id: int, *, recover: bool, digest: str = "CRC32C", password: str = "pw"
    ) -> "PeerReader":
        handle = self.peer.name("reader")
        how = "recover" if recover else "follow"
        answer = self.peer.ask("open", self.name, handle, ledger_id, digest, password or "-", how)
        lac, length, closed = answer.split()
        return PeerReader(self.peer, handle, int(lac), int(length), closed == "true")

    def metadata(self, ledger_id: int) -> list[str]:
        """Return state, last entry, length, digest, then the fragments."""
        return self.peer.ask("metadata", self.name, ledger_id).split()

    def list_ledgers(self) -> list[int]:
        return list(map(int, self.peer.ask("list", self.name).split()))

    def bookies(self) -> list[str]:
        """Return ids with the ports that they resolve to: `id=port`."""
        return self.peer.ask("bookies", self.name).split()

    def delete(self, ledger_id: int) -> None:
        self.peer.ask("delete", self.name, ledger_id)

    def entries(self, bookie_id: str, ledger_id: int) -> int:
        """Return how many entries of a ledger that bookie lists."""
        return int(self.peer.ask("entries", self.name, bookie_id, ledger_id))

    def close(self) -> None:
        self.peer.ask("disconnect", self.name)


@dataclass(frozen=True, slots=True)
class PeerWriter:
    peer: Peer
    handle: str
    ledger_id: int

    def append(self, number: int, size: int) -> int:
        """Append entries; return the last id when all are confirmed."""
        return int(self.peer.ask("append", self.handle, number, size))

    def append_at(self, entry_ids: Iterable[int], size: int) -> None:
        """Append entries in that order; return when all are confirmed."""
        self.peer.ask("append-at", self.handle, size, *entry_ids)

    def force(self) -> int:
        """Return the LAC when the appended entries are durable."""
        return int(self.peer.ask("force", self.handle))

    def close(self) -> None:
        self.peer.ask("close", self.handle)


@dataclass(frozen=True, slots=True)
class PeerReader:
    peer: Peer
    handle: str
    lac: int  # the LAC at the opening
    length: int
    closed: bool

    def read(self, first: int, last: int, size: int) -> int:
        return int(self.peer.ask("read", self.handle, first, last, size))

    def read_unconfirmed(self, first: int, last: int, size: int) -> int:
        return int(self.peer.ask("read-unconfirmed", self.handle, first, last, size))

    def batch_read(self, first: int, number: int, max_bytes: int, size: int) -> int:
        return int(self.peer.ask("batch-read", self.handle, first, number, max_bytes, size))

    def read_lac(self) -> int:
        return int(self.peer.ask("lac", self.handle))

    def wait_lac(self, entry_id: int, timeout_ms: int, size: int) -> tuple[int, bool]:
        """Return the LAC when that entry is confirmed; True if the entry came with the answer."""
        lac, came = self.peer.ask("wait-lac", self.handle, entry_id, timeout_ms, size).split()
        return int(lac), came == "true"
