"""The faults of a run, as data: what happens, and when.  `faults` carries them out.

The following faults are never drawn:

    exchanged disks   a bookie with another's cookies does not start (its own tests)
    old images that the metadata store does not know about
                      a bookie cannot tell such an image from its own disks: images are of the
                      present incarnation, and younger than the last position that the bookie
                      has written (`docs/bookie.md`)
    damage without re-replication
                      the damage stays, and counts against every promise
    queues at their limits
                      the limits are far beyond a small run's load; the tests of each queue
                      reach them
"""

from dataclasses import dataclass
from typing import TypeAlias

# -- when a fault strikes


@dataclass(frozen=True, slots=True)
class At:
    """A number of seconds after the cluster has begun to work."""

    seconds: float


@dataclass(frozen=True, slots=True)
class On:
    """The `nth` occurrence of a moment (see `moments`), plus a number of seconds."""

    moment: str
    nth: int = 1
    after_s: float = 0.0


# -- the faults.  A host is given by name, or is the SUBJECT of the moment or its PEER.

SUBJECT, PEER = "subject", "peer"


@dataclass(frozen=True, slots=True)
class Kill:
    host: str
    down_s: float
    power: bool = False  # some or all of the writes that were not synced are lost
    torn: bool = False  # a part of the data that was sent last arrives
    silent: bool = False  # the machine vanishes, too: nobody is told


@dataclass(frozen=True, slots=True)
class KillAll:
    """Kill all bookies and brokers."""

    down_s: float
    power: bool = False


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """Kill the host again and again, also while it starts."""

    host: str
    times: int
    up_s: float
    down_s: float
    power: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Add a bookie that was not there in the beginning."""

    host: str


@dataclass(frozen=True, slots=True)
class LoseDisk:
    """Lose a bookie with its disks forever; after a while a new bookie is added.

    This is done only where the other copies suffice, so that no acknowledged entry is lost.  With
    `again`, the bookie is first started on an empty disk, and must not serve.
    """

    host: str
    added_after_s: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class WipeDisk:
    """Erase a bookie's disks and start it with permission to start empty.  It answers "unknown" for
    each missing entry until it has copied it.  Bounded like `LoseDisk`.
    """

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class OldImage:
    """Kill a bookie and start it on its disk as it was `age_s` before, or with only one of its
    directories put back (`directory` is its index).  Bounded like `LoseDisk`.

    Nothing is done if the metadata store knows of nothing that has happened since.
    """

    host: str
    age_s: float
    down_s: float
    directory: int | None = None


@dataclass(frozen=True, slots=True)
class Rot:
    """Change bytes of a bookie's logs on the platter (`rot`).  Bounded like `LoseDisk`.

    `how`: a number of places is flipped, zeroed or unreadable; or a file is cut off, or gone.  With
    `down_s` the bookie is killed as well, and meets the damage when it starts.  Its index may have
    blocks that cannot be read, or files without which it cannot be opened.
    """

    host: str
    how: str
    places: int
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decommission:
    """Ask a bookie to leave, and stop it when no ledger names it any longer.

    The request may be interrupted after `interrupted_s`; then it is made again.
    """

    host: str
    interrupted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stutter:
    """Freeze and unfreeze a host in turns, like a host that is short of processor time."""

    host: str
    for_s: float
    frozen_s: float
    running_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop a host in good order and start it."""

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask a broker by REST to hand over all of its bundles; stop it in good order `after_s`."""

    host: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Freeze:
    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Hold back data to `other`; both ways unless `one_way`.  `reset` breaks connections later."""

    host: str
    other: str
    for_s: float
    one_way: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Isolate:
    """Cut a host off from all others and from the metadata store."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Break all connections of a host, or those with one other host."""

    host: str
    other: str = ""
    torn: bool = False


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Slow both directions between two hosts, or between one host and all others."""

    host: str
    other: str
    for_s: float
    factor: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Cut hosts off from all others, one after the other, and free them in another order."""

    hosts: tuple[str, ...]
    freed: tuple[str, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class LoseContact:
    """Cut a host off from the metadata store."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Expire:
    """Let the metadata store end the session of a host."""

    host: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Cut all hosts off from the metadata store."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Flaky:
    """Let the metadata store lose requests and answers, be late, slow, or answer from the past."""

    for_s: float
    lose_request: float = 0.0
    lose_answer: float = 0.0
    late: float = 0.0
    stale: float = 0.0
    slowness: float = 1.0


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let the metadata store reject a share of the writes below a path; it carries out none of
    them.

    `how`: the host has no right to write, or the value is larger than the store takes.
    """

    for_s: float
    share: float
    path: str
    how: str = "NoAuth"


@dataclass(frozen=True, slots=True)
class Deafen:
    """Let a live broker or bookie refuse new connections, so that others take it for dead."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class LateNotices:
    """Delay a host's notices from the metadata store: they arrive in a burst, with the next answer
    or when the fault ends.  A session that moves to another server delivers all notices, too.
    """

    host: str
    for_s: float
    moves: bool = False  # the session moves to another server in the end


@dataclass(frozen=True, slots=True)
class SlowDisk:
    host: str
    for_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class StuckDisk:
    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class FailDisk:
    """Let an operation fail; some time later the bookie is started again."""

    host: str
    operation: str  # write, sync, create, sync_names, read, index_write
    down_s: float


@dataclass(frozen=True, slots=True)
class FullDisk:
    """Fill a disk, or leave almost no room, so that the bookie is read-only; then free it again."""

    host: str
    for_s: float
    hard: bool  # writes fail; otherwise only the limit is passed


@dataclass(frozen=True, slots=True)
class LoseIndex:
    """Kill a bookie and delete its index, so that it starts from its log only."""

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class JumpClock:
    host: str
    by_s: float


@dataclass(frozen=True, slots=True)
class DriftClock:
    """Let the wall clock of a host run `rate` times as fast."""

    host: str
    for_s: float
    rate: float


Act: TypeAlias = (
    Kill
    | KillAll
    | CrashLoop
    | Join
    | LoseDisk
    | WipeDisk
    | OldImage
    | Rot
    | Decommission
    | Stutter
    | Restart
    | Drain
    | Freeze
    | Cut
    | Isolate
    | Reset
    | SlowLink
    | Swizzle
    | LoseContact
    | Expire
    | Outage
    | Flaky
    | Refuse
    | Deafen
    | LateNotices
    | SlowDisk
    | StuckDisk
    | FailDisk
    | FullDisk
    | LoseIndex
    | JumpClock
    | DriftClock
)
