"""The jars of a ZooKeeper server: where they are found, or how they are fetched.

`find_jars` takes the first of these places that has all of them:

1. the distribution that `--zookeeper-home` names;
2. the cache directory, if they were fetched before;
3. PySpark, if it is installed: it ships a ZooKeeper server among its 450 MB;
4. Maven Central: 7 MB (with TLS 10 MB), fetched once into the cache directory.

No package of PyPI ships a ZooKeeper server by itself.  A fetched file counts only if its SHA-256 is
the one in this module.  `DAYBOOK_MAVEN_URL` names a mirror of Maven Central.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from daybook.clients.cli.errors import UserError

MAVEN_URL = "https://repo.maven.apache.org/maven2"
_TIMEOUT_S = 30.0
_ADVICE = (
    "Try again, or set DAYBOOK_MAVEN_URL to a mirror of Maven Central. PySpark ships the jars, too "
    "(pip install 'daybook-mq[spark]'). Or name a distribution with --zookeeper-home, or a running "
    "ZooKeeper with --zookeeper HOST:PORT."
)


@dataclass(frozen=True, slots=True)
class _Jar:
    group: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Return the path of this jar in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"


_LOG4J = ("org.apache.logging.log4j", "2.25.4")
_JARS = (
    _Jar(
        "org.apache.zookeeper",
        "zookeeper",
        "3.9.5",
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
    ),
    _Jar(
        "org.apache.zookeeper",
        "zookeeper-jute",
        "3.9.5",
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    ),
    _Jar(
        "io.dropwizard.metrics",
        "metrics-core",
        "4.2.37",
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678",
    ),
    _Jar(
        "org.xerial.snappy",
        "snappy-java",
        "1.1.10.8",
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    ),
    _Jar(
        "org.slf4j",
        "slf4j-api",
        "2.0.17",
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
    ),
    _Jar(
        _LOG4J[0],
        "log4j-api",
        _LOG4J[1],
        "c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d",
    ),
    _Jar(
        _LOG4J[0],
        "log4j-core",
        _LOG4J[1],
        "10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6",
    ),
    _Jar(
        _LOG4J[0],
        "log4j-slf4j2-impl",
        _LOG4J[1],
        "dd897abc5eb3a6d965426c7937b92dd43e67c82d9819bea5d19f311516c68be3",
    ),
)


def _netty(name: str, sha256: str) -> _Jar:
    return _Jar("io.netty", f"netty-{name}", "4.2.14.Final", sha256)


# ZooKeeper speaks TLS through Netty alone.  Java itself does the cryptography.
_TLS_JARS = (
    _netty("common", "f157563175b07dbf252924e12390b87e3772ea0a9bf6f7505e7367f26fd722d1"),
    _netty("buffer", "1a781d45cbbf1524159840e40d16e5cbc4e6e04eaac26381b00e433eface3e35"),
    _netty("transport", "6f184bc1946a022cb4556c50f35edfd6335ccf02587ea2c520131b5774f5f063"),
    _netty("resolver", "9c261739a11dbe90a6d2f9bf72dbfb780d776fa086e48e6a9263684e481ea257"),
    _netty("codec-base", "e6c72017b7118bfe90ebdcaa8bb7d02769499b07be0f1667b7719bab93e37056"),
    _netty("handler", "a23de2261ff904be5eb988eb117b185e15d9997b09304ef0a98fd587abd2e09f"),
    _netty(
        "transport-native-unix-common",
        "6c57976b2bcc87097cb9e9c52b4d55191d2550ac3bddd29e890cb2150b9a5ff0",
    ),
    _netty(
        "transport-classes-epoll",
        "00a2ec5fd5f9258a09b198aee43234ec879dc0af520b8d1977b8bd7010443362",
    ),
)


def find_jars(
    zookeeper_home: Path | None, environ: Mapping[str, str], *, tls: bool = False
) -> tuple[str, ...]:
    """Return the class path of a ZooKeeper server; fetch the jars if no place has them.

    A server that speaks TLS needs more of them.  Raise `UserError` if `zookeeper_home` is no
    distribution, or if the jars cannot be fetched.
    """
    if zookeeper_home is not None:
        return _in_distribution(zookeeper_home.absolute())
    cache = cache_directory(environ)
    jars = (*_JARS, *_TLS_JARS) if tls else _JARS
    missing = [jar for jar in jars if not (cache / jar.file_name).is_file()]
    if missing:
        if shipped := _in_pyspark(jars):
            return shipped
        _fetch(missing, cache, environ.get("DAYBOOK_MAVEN_URL") or MAVEN_URL)
    return tuple(str(cache / jar.file_name) for jar in jars)


def _in_distribution(home: Path) -> tuple[str, ...]:
    jars = sorted(home.glob("lib/*.jar")) or sorted(home.glob("*.jar"))
    if not any(jar.match("zookeeper-[0-9]*.jar") for jar in jars):
        raise UserError(f"There is no ZooKeeper distribution in {home}: no zookeeper-*.jar.")
    return (*(str(jar) for jar in jars), str(home / "conf"))


def _in_pyspark(jars: Sequence[_Jar]) -> tuple[str, ...]:
    """Return PySpark's jars, of whatever versions it ships; nothing if one is missing."""
    spec = find_spec("pyspark")
    found: list[str] = []
    for jar in jars:
        for place in (spec.submodule_search_locations if spec else None) or []:
            found += map(str, sorted(Path(place).glob(f"jars/{jar.name}-[0-9]*.jar"))[:1])
    return tuple(found) if len(found) == len(jars) else ()


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for what is fetched or made once and serves all clusters of a user."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "daybook" / "zookeeper"


def _fetch(jars: Sequence[_Jar], cache: Path, repository: str) -> None:
    size = "10 MB" if set(_TLS_JARS) & set(jars) else "7 MB"
    print(f"daybook: fetching ZooKeeper ({size}) from {repository}", file=sys.stderr)  # noqa: T201
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            _fetch_one(jar, cache, repository)
    except (OSError, ValueError) as error:  # ValueError: the mirror's address is none
        raise UserError(
            f"ZooKeeper's jars could not be fetched from {repository}: {error}. {_ADVICE}"
        ) from error


def _fetch_one(jar: _Jar, cache: Path, repository: str) -> None:
    """Fetch one jar; the file gets its name only when it is complete and its digest is right."""
    url = f"{repository.rstrip('/')}/{jar.path}"
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as part:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                while block := answer.read(1 << 16):
                    digest.update(block)
                    part.write(block)
            if digest.hexdigest() != jar.sha256:
                raise OSError(f"{url} has another SHA-256 than {jar.sha256}")
            part.close()
            shutil.move(part.name, cache / jar.file_name)
        except BaseException:
            os.unlink(part.name)
            raise
