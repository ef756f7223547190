"""Finding Java and ZooKeeper's jars, and the command that runs them."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from daybook.clients.cli import zookeeper_jars
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.zookeeper import Java, Server, ServerTls, find_java
from daybook.clients.cli.zookeeper_jars import find_jars
from daybook.wire.tls_files import TlsFiles
from tests.harness.certificates import Authority


def install(place: Path, *, release: str | None = None, says: str = "", code: int = 0) -> Path:
    """A Java that only knows its version."""
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    if release is not None:
        (place / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return place


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("11.0.1", 11)],
)
def test_the_major_version(version: str, major: int) -> None:
    assert Java("java", version).major == major


def test_java_home_comes_first_if_it_is_new_enough(tmp_path: Path) -> None:
    home = install(tmp_path / "home", release="21.0.1")
    path = install(tmp_path / "path", release="17.0.15") / "bin"
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path)})
    assert (found.path, found.version) == (str(home / "bin/java"), "21.0.1")
    (home / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    assert find_java({"JAVA_HOME": str(home), "PATH": str(path)}).version == "17.0.15"
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": str(path)}).version == "17.0.15"


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    place = install(tmp_path / "jdk", says='openjdk version "22.0.2" 2024-07-16')
    assert find_java({"PATH": str(place / "bin")}).version == "22.0.2"


def test_a_missing_or_old_java_is_one_sentence(tmp_path: Path) -> None:
    broken = install(tmp_path / "broken", says="Unable to locate a Java Runtime.", code=1)
    old = install(tmp_path / "old", release="11.0.2")
    for path in ("", str(tmp_path), str(broken / "bin")):
        with pytest.raises(UserError, match="ZooKeeper needs Java 17 or newer: install") as error:
            find_java({"PATH": path})
        assert "\n" not in error.value.message
    with pytest.raises(UserError, match=r"newer \(found only Java 11\.0\.2\)"):
        find_java({"PATH": str(old / "bin")})


def test_a_distribution_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar", "logback-core-1.2.jar"):
        (tmp_path / "lib" / name).write_text("")
    jars = find_jars(tmp_path, {})
    assert [Path(jar).name for jar in jars[:-1]] == sorted(os.listdir(tmp_path / "lib"))
    assert jars[-1] == str(tmp_path / "conf")
    (tmp_path / "lib" / "zookeeper-3.9.3.jar").unlink()
    with pytest.raises(UserError, match="no ZooKeeper distribution in"):
        find_jars(tmp_path, {})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository with one small jar; PySpark is not installed."""
    content = b"a jar"
    jar = zookeeper_jars._Jar("org.example", "server", "1.0", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(zookeeper_jars, "_JARS", (jar,))
    place = tmp_path / "maven"
    (place / jar.path).parent.mkdir(parents=True)
    (place / jar.path).write_bytes(content)
    return place


def test_jars_that_nobody_has_are_fetched_once(repository: Path, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "DAYBOOK_MAVEN_URL": repository.as_uri()}
    jars = find_jars(None, environ)
    assert [Path(jar).read_bytes() for jar in jars] == [b"a jar"]
    shutil.rmtree(repository)
    assert find_jars(None, environ) == jars


def test_a_jar_with_another_digest_is_not_kept(repository: Path, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "DAYBOOK_MAVEN_URL": repository.as_uri()}
    next(repository.rglob("*.jar")).write_bytes(b"another jar")
    with pytest.raises(UserError, match=r"another SHA-256.*DAYBOOK_MAVEN_URL"):
        find_jars(None, environ)
    assert os.listdir(tmp_path / "daybook" / "zookeeper") == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/maven", "nonsense"])
def test_a_repository_that_cannot_be_reached_is_named(
    repository: Path, tmp_path: Path, url: str
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "DAYBOOK_MAVEN_URL": url}
    with pytest.raises(UserError, match=f"could not be fetched from {url}: .*--zookeeper-home"):
        find_jars(None, environ)


def test_the_jars_of_pyspark_are_used_where_it_is_installed(tmp_path: Path) -> None:
    names = [Path(jar).name for jar in find_jars(None, {"XDG_CACHE_HOME": str(tmp_path)})]
    assert [name.rsplit("-", 1)[0] for name in names] == [jar.name for jar in zookeeper_jars._JARS]


def _server(
    directory: Path, archives: Path, *, java: str = "17.0.15", jar: Path = Path("a.jar")
) -> Server:
    directory.mkdir(exist_ok=True)
    return Server(Java("java", java), (str(jar),), directory, 2181, archives)


def test_the_archive_of_classes_is_made_once_for_all_clusters(tmp_path: Path) -> None:
    server = _server(tmp_path / "one", tmp_path / "cache")
    assert f"-XX:ArchiveClassesAtExit={server.new_archive}" in server.command()
    server.new_archive.write_text("half of it")
    server.exited(-9)
    assert not server.archive.exists()
    assert not server.new_archive.exists()
    server.new_archive.write_text("whole")
    server.exited(143)
    other = _server(tmp_path / "two", tmp_path / "cache")
    assert f"-XX:SharedArchiveFile={server.archive}" in other.command()
    assert other.archive.read_text() == "whole"
    other.exited(143)
    assert os.listdir(tmp_path / "cache") == [server.archive.name]


def test_an_archive_fits_one_java_and_the_jars_as_they_are(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_text("old")
    before = _server(tmp_path, tmp_path, jar=jar).archive
    assert _server(tmp_path, tmp_path, jar=jar).archive == before
    assert _server(tmp_path, tmp_path, jar=jar, java="17.0.16").archive != before
    jar.write_text("newer")
    assert _server(tmp_path, tmp_path, jar=jar).archive != before


def test_the_newest_archives_are_kept(tmp_path: Path) -> None:
    servers = [_server(tmp_path / "zk", tmp_path / "cache", java=f"17.0.{n}") for n in range(6)]
    for age, server in enumerate(servers):
        server.new_archive.write_text("whole")
        server.exited(143)
        os.utime(server.archive, (age, age))
    assert [server.archive.exists() for server in servers] == [False] * 2 + [True] * 4


def test_a_server_ends_well_where_no_archive_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = _server(tmp_path / "zk", tmp_path / "file" / "cache")
    server.new_archive.write_text("whole")
    server.exited(143)
    assert f"-XX:ArchiveClassesAtExit={server.new_archive}" in server.command()


def test_the_server_listens_on_this_machine_only(tmp_path: Path) -> None:
    Server(Java("java", "17"), ("a.jar",), tmp_path / "zk", 2182, tmp_path).prepare()
    lines = (tmp_path / "zk" / "zoo.cfg").read_text().splitlines()
    assert {"clientPort=2182", "clientPortAddress=127.0.0.1", "tickTime=500"} < set(lines)
    assert not any("forceSync" in line for line in lines)


def test_a_server_with_tls_has_no_port_without_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    files = TlsFiles(issued.certificate, issued.key, authority.trusted)
    tls = ServerTls(files, "required")
    Server(Java("java", "17"), ("a.jar",), tmp_path / "zk", 2182, tmp_path, tls).prepare()
    lines = (tmp_path / "zk" / "zoo.cfg").read_text().splitlines()
    assert {"secureClientPort=2182", "ssl.clientAuth=need"} < set(lines)
    assert not any(line.startswith("clientPort") for line in lines)
    store = tmp_path / "zk" / "server.pem"
    assert store.stat().st_mode & 0o777 == 0o600
    assert b"BEGIN PRIVATE KEY" in store.read_bytes()


def test_tls_needs_more_jars(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    plain, tls = find_jars(None, environ), find_jars(None, environ, tls=True)
    assert {Path(jar).name.partition("-4")[0] for jar in set(tls) - set(plain)} == {
        jar.name for jar in zookeeper_jars._TLS_JARS
    }
