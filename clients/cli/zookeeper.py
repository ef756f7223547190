"""The command of a ZooKeeper server; `zookeeper_jars` finds its jars.

This module decides what to run and tells when the server is ready; the supervisor starts and
watches the process.  The server listens on the loopback interface only.

ZooKeeper writes every transaction to disk before it answers (its default).  Snapshots are small,
and old ones are purged.  The heap begins small and grows with the tree: 64 MB hold about 100,000
records, and a topic has two or more.
The classes that a server loads are archived on the first clean exit (`exited`), in the cache
directory of the user.  Later starts take a quarter less of the processor, those of other clusters,
too.

A server with TLS (`ServerTls`) has one port, which speaks TLS alone.  It reads its certificate at
its start.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import trio

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.zookeeper_jars import cache_directory, find_jars
from daybook.wire.clock import SystemClock
from daybook.wire.errors import ConnectionLostError
from daybook.wire.logging import silent_log
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls import TlsClient
from daybook.wire.tls_files import ClientCertificates, ReloadedContext, TlsFiles, client_context
from daybook.wire.transport import Stream

JAVA_VERSION_MIN = 17
TICK_MS = 500
# ZooKeeper keeps the last 500 requests; one that writes a long list takes 1 MB.
HEAP_MB = 256
HEAP_MAX_MB = 1024
_ARCHIVES_MAX = 4  # one of 12 MB for each Java and class path; the oldest are removed
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ASK_TIMEOUT_S = 1.0
_SERVING = b"Zookeeper version"  # begins the answer to `srvr`
_READY_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Java:
    path: str
    version: str

    @property
    def major(self) -> int:
        """8 of "1.8.0_392", 17 of "17.0.15"."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)[:2]]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS of a server; `files` needs a certificate and its key.

    With "required", the server's own certificate must be valid for clients, too, because
    `wait_ready` shows it.
    """

    files: TlsFiles
    client_certificates: ClientCertificates = "off"


_CLIENT_AUTH = {"off": "none", "optional": "want", "required": "need"}


@dataclass(frozen=True, slots=True)
class Server:
    """The Java, class path, directory and port of a server; `archives` is for archived classes."""

    java: Java
    class_path: tuple[str, ...]
    directory: Path
    port: int
    archives: Path
    tls: ServerTls | None = None

    @property
    def lone_stop(self) -> signal.Signals:
        """SIGKILL.  On SIGTERM, Java freezes the server and archives its classes.

        Archiving can take longer than the session timeout of a broker; the server then expires the
        session before it exits.  A kill is safe: every answered transaction is on disk.
        """
        return signal.SIGKILL

    @property
    def archive(self) -> Path:
        """The file of the class archive, which is only valid for the same Java and jars."""
        key = crc32("\0".join([self.java.version, *map(_stamp, self.class_path)]).encode())
        return self.archives / f"classes-{key:08x}.jsa"

    @property
    def new_archive(self) -> Path:
        """The file that Java writes before it ends."""
        return self.directory / "classes.new"

    def command(self) -> list[str]:
        return [
            self.java.path,
            f"-Xms{HEAP_MB}m",
            f"-Xmx{HEAP_MAX_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Xlog:cds=error,cds+dynamic=error",  # which classes an archive cannot hold
            "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dlog4j2.disableJmx=true",
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            *self._archive_options(),
            *("-cp", os.pathsep.join(self.class_path), _MAIN),
            str(self.directory / "zoo.cfg"),
        ]

    def _archive_options(self) -> list[str]:
        # Java starts without an archive that does not match; that is not an error.
        if os.access(self.archive, os.R_OK):
            return [f"-XX:SharedArchiveFile={self.archive}"]
        return [f"-XX:ArchiveClassesAtExit={self.new_archive}"]

    def prepare(self) -> None:
        """Write the configuration files of the server."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = _zoo_cfg(self.directory / "data", self.port, secure=self.tls is not None)
        if self.tls is not None:
            config += self._prepare_tls(self.tls)
        (self.directory / "zoo.cfg").write_text(config)
        (self.directory / "log4j2.properties").write_text(_LOG4J)

    def _prepare_tls(self, tls: ServerTls) -> str:
        """Write the key store, which has key and certificate in one file; return settings."""
        assert tls.files.certificate is not None
        assert tls.files.key is not None
        store = self.directory / "server.pem"
        with open(os.open(store, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_pkcs8(tls.files.key) + tls.files.certificate.read_bytes())
        return _tls_cfg(store, tls)

    def exited(self, code: int) -> None:
        """Keep the new archive if Java ended on SIGTERM; only then is the archive complete.

        Servers may end at the same time: each archive gets its name when it is complete.
        """
        if code == 128 + signal.SIGTERM and self.new_archive.exists():
            with suppress(OSError):  # Without an archive, a start takes longer.
                self._keep_archive()
        self.new_archive.unlink(missing_ok=True)

    def _keep_archive(self) -> None:
        self.archives.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.archives) as place:
            copied = shutil.copy(self.new_archive, place)
            Path(copied).rename(self.archive)
        kept = sorted(self.archives.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_ARCHIVES_MAX]:
            old.unlink(missing_ok=True)

    async def wait_ready(self) -> None:
        tls = None
        if self.tls is not None:
            build = partial(client_context, verify_host=False)
            tls = TlsClient(
                ReloadedContext(self.tls.files, build, clock=SystemClock(), log=silent_log())
            )
        while not await is_serving("127.0.0.1", self.port, tls):  # noqa: ASYNC110  another process
            await trio.sleep(_READY_POLL_S)


def find_server(
    directory: Path,
    port: int,
    *,
    zookeeper_home: Path | None,
    environ: Mapping[str, str],
    tls: ServerTls | None = None,
) -> Server:
    """Return the server to run.  Raise `UserError` if Java or the jars are missing."""
    java = find_java(environ)
    jars = find_jars(zookeeper_home, environ, tls=tls is not None)
    return Server(java, jars, directory.absolute(), port, cache_directory(environ), tls)


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first Java that is new enough: from JAVA_HOME, then from the PATH."""
    home = environ.get("JAVA_HOME", "")
    candidates = [shutil.which("java", path=str(Path(home) / "bin"))] if home else []
    candidates.append(shutil.which("java", path=environ.get("PATH", "")))
    found = [java for path in candidates if path and (java := _examine(Path(path)))]
    for java in found:
        if java.major >= JAVA_VERSION_MIN:
            return java
    seen = f" (found only Java {found[0].version})" if found else ""
    raise UserError(
        f"ZooKeeper needs Java {JAVA_VERSION_MIN} or newer{seen}: install a headless JRE (Debian: "
        "apt install default-jre-headless) or set JAVA_HOME, or use a running ZooKeeper with "
        "--zookeeper HOST:PORT."
    )


def _examine(path: Path) -> Java | None:
    """Return a Java with its version: from its release file, else by running it (0.1 s)."""
    release = path.resolve().parent.parent / "release"
    try:
        text = release.read_text(errors="replace")
    except OSError:
        text = ""
    match = re.search(r'^JAVA_VERSION="([^"]*\d[^"]*)"', text, re.MULTILINE)
    if match is None:
        try:
            asked = subprocess.run(
                [path, "-version"], capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        match = re.search(r'version "([^"]*\d[^"]*)"', asked.stderr + asked.stdout)
    return None if match is None else Java(str(path), match[1])


async def is_serving(host: str, port: int, tls: TlsClient | None = None) -> bool:
    """Return True if the ZooKeeper there serves clients: if it answers `srvr` with its version.

    Its whitelist must allow that.  A server that is still starting answers `ruok` already.
    """
    with trio.move_on_after(_ASK_TIMEOUT_S):
        try:
            stream: Stream = await TcpNetwork().connect(host, port)
            if tls is not None:
                stream = await tls.connect(stream, host)
        except ConnectionLostError:
            return False
        try:
            stream.try_send([b"srvr"])
            answer = bytearray(len(_SERVING))
            view, got = memoryview(answer), 0
            while got < len(answer):
                await stream.wait_readable()
                count = stream.try_recv_into(view[got:])
                if count == 0:
                    return False  # the server closed the connection
                got += count or 0  # None: nothing was readable after all
            return bytes(answer) == _SERVING
        except ConnectionLostError:
            return False
        finally:
            stream.close()
    return False


def _stamp(file: str) -> str:
    """Return the path with what Java compares before it uses an archive: time and size."""
    try:
        status = os.stat(file)
    except OSError:
        return file
    return f"{file} {status.st_mtime_ns} {status.st_size}"


def _pkcs8(key: Path) -> bytes:
    """Return a private key in the one form that ZooKeeper reads."""
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _tls_cfg(store: Path, tls: ServerTls) -> str:
    # A server that asks nobody for a certificate needs no authorities, but ZooKeeper loads some.
    trusted = tls.files.trusted or tls.files.certificate
    assert trusted is not None
    return f"""\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={store}
ssl.keyStore.type=PEM
ssl.trustStore.location={trusted.absolute()}
ssl.trustStore.type=PEM
ssl.clientAuth={_CLIENT_AUTH[tls.client_certificates]}
ssl.enabledProtocols=TLSv1.3,TLSv1.2
"""


def _zoo_cfg(data: Path, port: int, *, secure: bool = False) -> str:
    kind = "secureClientPort" if secure else "clientPort"
    return f"""\
# Written by daybook at every start.
tickTime={TICK_MS}
maxSessionTimeout=60000
dataDir={data}
{kind}={port}
{kind}Address=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr
preAllocSize=4096
snapCount=20000
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


_LOG4J = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1} %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""
