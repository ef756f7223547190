"""The data directory of a standalone cluster, and the lock that keeps it to one process.

DIR/lock               locked by the process that runs the cluster; contains its pid
DIR/standalone.json    the ports and the ZooKeeper of the cluster; ports identify the bookies; also
                       which parts are locked, and where its brokers were reached last
DIR/control.path       the path of the Unix socket for `daybook local`
DIR/conf/NAME.toml     the settings of the parts, written at every start
DIR/logs/NAME.log
DIR/security           the keys, certificates and tokens of a secure cluster (`secure`)
DIR/zookeeper, DIR/bookie-N    their data
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from daybook.clients.cli.errors import UserError

FORMAT_VERSION = 3
_FIRST_VERSION = 1  # without `security`, `host` and `names`
_SECOND_VERSION = 2  # without `locked`: brokers are, if the cluster is secure
LOOPBACK = "127.0.0.1"
_SCHEMES = {False: ("pulsar", "http"), True: ("pulsar+ssl", "https")}
Choice: TypeAlias = Literal["older", "none", "insecure", "secure"]
"""The decision about the security of a cluster.

older: it was made before there was a choice; none: it needs none, since only this machine reaches
it; insecure: it is open to everybody who reaches it; secure: it asks who its clients are.
"""
Locked: TypeAlias = tuple[Literal["brokers", "bookies", "zookeeper"], ...]
"""The parts of a secure cluster that ask who comes; a ZooKeeper of others is none of its parts."""
# A Unix socket's path may have 107 bytes on Linux, 103 on others.
_SOCKET_PATH_BYTES_MAX = 100


@dataclass(frozen=True, slots=True)
class Ports:
    """The two ports of a part: the one that it serves, and HTTP."""

    port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The state that a cluster keeps from one start to the next."""

    zookeeper: str  # host:port of an external ZooKeeper, else empty
    zookeeper_port: int
    bookies: tuple[Ports, ...]
    brokers: tuple[Ports, ...]
    security: Choice = "older"
    host: str = LOOPBACK  # by which the brokers are reached
    names: tuple[str, ...] = ()  # further names in the certificate of the brokers
    locked: Locked = ()

    @property
    def zookeeper_address(self) -> str:
        """HOST:PORT,... of the ZooKeeper."""
        return self.zookeeper or f"{LOOPBACK}:{self.zookeeper_port}"

    @property
    def service_url(self) -> str:
        scheme, _ = _SCHEMES[self.security == "secure"]
        return f"{scheme}://" + ",".join(f"{in_url(self.host)}:{b.port}" for b in self.brokers)

    @property
    def admin_url(self) -> str:
        _, scheme = _SCHEMES[self.security == "secure"]
        return f"{scheme}://" + ",".join(f"{in_url(self.host)}:{b.http_port}" for b in self.brokers)


def in_url(host: str) -> str:
    """Return a host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


class Directory:
    """A data directory.  If `open_directory` made this object, the process has locked it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def part(self, name: str) -> Path:
        return self.path / name

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def write_config(self, name: str, settings: Mapping[str, Any]) -> Path:
        path = self.path / "conf" / f"{name}.toml"
        # For strings, numbers, booleans and lists of them, JSON is valid TOML.
        lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in settings.items()]
        path.write_text("# Written by daybook at every start.\n" + "".join(lines))
        return path

    def load(self) -> Saved | None:
        file = self.path / "standalone.json"
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text())
            if found["version"] not in (_FIRST_VERSION, _SECOND_VERSION, FORMAT_VERSION):
                raise UserError(
                    f"{file} was written by another version of Daybook: use that version."
                )
            return _saved(found)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"The state of the cluster in {file} cannot be read: {error!r}."
            ) from error

    def save(self, saved: Saved) -> None:
        file = self.path / "standalone.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"version": FORMAT_VERSION, **asdict(saved)}, indent=1) + "\n")
        new.replace(file)  # atomic: a crash leaves the old file or the new one, never half of one

    @contextmanager
    def control_socket(self) -> Generator[Path]:
        """Yield the path for the control socket, and write it to `control.path`."""
        direct = self.path / "control.sock"
        if len(os.fsencode(direct)) <= _SOCKET_PATH_BYTES_MAX:
            direct.unlink(missing_ok=True)
            self._control_path().write_text(str(direct))
            yield direct
            direct.unlink(missing_ok=True)
            return
        with tempfile.TemporaryDirectory(prefix="daybook-") as short:
            self._control_path().write_text(f"{short}/control.sock")
            yield Path(short) / "control.sock"

    def _control_path(self) -> Path:
        return self.path / "control.path"


def _saved(found: Mapping[str, Any]) -> Saved:
    """Return what `standalone.json` says.  Raise KeyError, TypeError or ValueError."""
    later: dict[str, Any] = {}
    if found["version"] != _FIRST_VERSION:
        if found["security"] not in get_args(Choice):
            raise ValueError(found["security"])
        later = {"security": found["security"], "host": str(found["host"])}
        later["names"] = tuple(str(name) for name in found["names"])
        later["locked"] = _locked(found)
    return Saved(
        zookeeper=found["zookeeper"],
        zookeeper_port=found["zookeeper_port"],
        bookies=tuple(Ports(**ports) for ports in found["bookies"]),
        brokers=tuple(Ports(**ports) for ports in found["brokers"]),
        **later,
    )


def _locked(found: Mapping[str, Any]) -> Locked:
    is_secure = found["security"] == "secure"
    if found["version"] == _SECOND_VERSION:
        return ("brokers",) if is_secure else ()
    locked = found["locked"]
    # A part that this release does not know cannot be opened by accident.
    known = all(part in ("brokers", "bookies", "zookeeper") for part in locked)
    if not known or is_secure != ("brokers" in locked):
        raise ValueError(locked)
    return tuple(locked)


def find_control_socket(directory: Path) -> Path:
    try:
        return Path((directory / "control.path").read_text())
    except OSError:
        raise UserError(
            f"No standalone cluster was ever started in {directory}: go to the directory where"
            " `daybook standalone` runs, or name its data with --dir or DAYBOOK_DIR."
        ) from None


@contextmanager
def open_directory(path: Path) -> Generator[Directory]:
    """Create and lock the directory.  Raise `UserError` if another process has locked it."""
    path = path.absolute()
    try:
        if not path.exists():
            path.mkdir(mode=0o700, parents=True)
        for place in (path / "conf", path / "logs"):
            place.mkdir(exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(
            f"The directory {path} cannot be used: {error.strerror}. Name another one with --dir."
        ) from error
    # The lock file is never removed: a process could lock the removed file while another one locks
    # a new file of that name.  The kernel releases the lock however this process ends.
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            raise UserError(
                f"{path} is in use by another daybook standalone (pid {pid}): stop that one, or"
                " name another directory with --dir."
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield Directory(path)
    finally:
        os.close(lock)
