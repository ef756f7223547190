"""What goes wrong in a run, as data: when, and what.  `faults` carries it out.

Off, and why:

    exchanged disks                                     a bookie with another's cookies does not
                      start (its own tests)
    old images that the metadata store has not heard of a bookie cannot tell them from its own
                      disks: images of the present life, younger than the last position that it
                      has written (`docs/bookie.md`)
    damage where nobody makes copies again              it stays, and counts against every promise
    queues at their limits                              the limits are far beyond a small run's
                      load; the tests of each queue reach them
"""

from dataclasses import dataclass
from typing import TypeAlias

# -- when


@dataclass(frozen=True, slots=True)
class At:
    """So many seconds after the cluster has begun to work."""

    seconds: float


@dataclass(frozen=True, slots=True)
class On:
    """When something happens for the `nth` time, and so many seconds later.  See `moments`."""

    moment: str
    nth: int = 1
    after_s: float = 0.0


# -- what.  Hosts by name; or the one that the moment is about (SUBJECT), or its PEER.

SUBJECT, PEER = "subject", "peer"


@dataclass(frozen=True, slots=True)
class Kill:
    host: str
    down_s: float
    power: bool = False  # what its disk had not synced is lost, all or in part
    torn: bool = False  # a part of what it has sent last arrives
    silent: bool = False  # the machine is gone, too: nobody is told


@dataclass(frozen=True, slots=True)
class KillAll:
    """All bookies and brokers."""

    down_s: float
    power: bool = False


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """Killed again and again, also while it starts."""

    host: str
    times: int
    up_s: float
    down_s: float
    power: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """A bookie that was not there in the beginning."""

    host: str


@dataclass(frozen=True, slots=True)
class LoseDisk:
    """A bookie is gone for ever, with what it had; after a while a new one is added.

    Only where the other copies suffice, so that nothing that was acknowledged is lost.  `again`: it
    is started on an empty disk first, and must not serve.
    """

    host: str
    added_after_s: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class WipeDisk:
    """A bookie loses all that it had, and starts again with leave to do without it: it doubts what
    it does not have until it has copied it.  Bounded like `LoseDisk`.
    """

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class OldImage:
    """A bookie is killed, and starts on its disk as it was `age_s` before that, or on one of its
    directories: `directory` counts them.  Bounded like `LoseDisk`.

    Nothing is done if the metadata store knows of nothing that has happened since.
    """

    host: str
    age_s: float
    down_s: float
    directory: int | None = None


@dataclass(frozen=True, slots=True)
class Rot:
    """Bytes of a bookie's logs are not as they were (`rot`).  Bounded like `LoseDisk`.

    `how`: flipped, zeroed, or unreadable, in so many places; or a file is cut off, or gone.  With
    `down_s` the bookie is killed with it, and meets the damage when it starts.  Its index may have
    blocks that cannot be read, or files without which it cannot be opened.
    """

    host: str
    how: str
    places: int
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decommission:
    """A bookie is asked to leave, and stopped when nothing names it any more.

    Who asks may be `interrupted_s` after they began, and begins once more.
    """

    host: str
    interrupted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stutter:
    """Frozen and let go in turns: a host that is short of processor."""

    host: str
    for_s: float
    frozen_s: float
    running_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """In good order."""

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class Freeze:
    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """What `host` sends to `other` waits; both ways, unless `one_way`.  `reset` breaks it later."""

    host: str
    other: str
    for_s: float
    one_way: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Isolate:
    """Cut off from everybody, and from the metadata store."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Reset:
    """All connections of a host, or those with another one, break."""

    host: str
    other: str = ""
    torn: bool = False


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Both ways, between two hosts, or between one and all others."""

    host: str
    other: str
    for_s: float
    factor: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Hosts are cut off from all others, one after the other, and freed in another order."""

    hosts: tuple[str, ...]
    freed: tuple[str, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class LoseContact:
    """With the metadata store."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Expire:
    """The metadata store ends the session of a host."""

    host: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Nobody reaches the metadata store."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Flaky:
    """The metadata store loses requests, answers, is late, slow, or answers from an old state."""

    for_s: float
    lose_request: float = 0.0
    lose_answer: float = 0.0
    late: float = 0.0
    stale: float = 0.0
    slowness: float = 1.0


@dataclass(frozen=True, slots=True)
class Refuse:
    """The metadata store refuses a share of the writes below a path: it carries out none of them.

    `how`: no right to it, or the value is larger than the store takes.
    """

    for_s: float
    share: float
    path: str
    how: str = "NoAuth"


@dataclass(frozen=True, slots=True)
class Deafen:
    """A broker or bookie takes no new connections, and lives: others take it for dead."""

    host: str
    for_s: float


@dataclass(frozen=True, slots=True)
class LateNotices:
    """What a host watches in the metadata store changes, and it hears of that late, in a burst:
    with the next answer that it gets, or when it is over.  A session that moves says it all, too.
    """

    host: str
    for_s: float
    moves: bool = False  # in the end the session moves to another server


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
    """An operation fails; some time later the bookie is started again."""

    host: str
    operation: str  # write, sync, create, sync_names, read, index_write
    down_s: float


@dataclass(frozen=True, slots=True)
class FullDisk:
    """No room is left, or almost none, so that the bookie is read only; then there is again."""

    host: str
    for_s: float
    hard: bool  # writes fail; else only the limit is passed


@dataclass(frozen=True, slots=True)
class LoseIndex:
    """A bookie is killed, and finds no index when it starts: only its log."""

    host: str
    down_s: float


@dataclass(frozen=True, slots=True)
class JumpClock:
    host: str
    by_s: float


@dataclass(frozen=True, slots=True)
class DriftClock:
    """The wall clock of a host runs so many times as fast."""

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
