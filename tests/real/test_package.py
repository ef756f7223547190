"""The wheel, built from the source distribution, beside a script folder with names like ours.

A `clients/` folder or a `wire.py` of the user comes before all installed packages.  So the wheel
must install nothing but `daybook` and `pyspark_daybook`, and import itself by those names.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("wire", "bookie", "managed_ledger", "broker", "clients")
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("package")]

SCRIPT = """
import json, sys
import clients, wire, broker, bookie, managed_ledger
assert {m.FOREIGN for m in (clients, wire, broker, bookie, managed_ledger)} == {True}
import daybook, daybook.blocking, daybook.testing, daybook.ledgers.blocking
from daybook.ledgers import connect
from daybook.admin import Admin

def main():
    with daybook.testing.StandaloneProcess(brokers=1) as cluster:
        with daybook.blocking.connect(cluster.service_url) as client:
            with client.subscribe("t", "s", initial_position="earliest") as consumer:
                with client.create_producer("t") as producer:
                    for i in range(10):
                        producer.send(b"%d" % i)
                found = [consumer.receive(timeout_s=30).data for _ in range(10)]
        assert found == [b"%d" % i for i in range(10)], found
        address = f"zk://{cluster.zookeeper}/ledgers"
        with daybook.ledgers.blocking.connect(address) as ledgers:
            with ledgers.create() as writer:
                writer.append(b"one")
            reader = ledgers.open(writer.ledger_id, recover=False)
            assert [entry.data for entry in reader.read(0, 0)] == [b"one"]
        rows = read_by_spark(cluster.service_url)
        assert sorted(rows) == found, rows
    print("all of it works")

def read_by_spark(url):
    from pyspark.sql import SparkSession
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = session.config("spark.log.level", "OFF").getOrCreate()
    frame = spark.read.format("daybook").option("service.url", url).option("topic", "t").load()
    return [bytes(row.value) for row in frame.select("value").collect()]

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a clean environment with the wheel.

    Other packages come from this environment: a path in a `.pth` file is only appended, so the
    checkout that is installed here is not visible there.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def kept_files() -> set[str]:
    command = ["git", "ls-files", *LAYERS, "daybook", "pyspark_daybook"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split() if not (ROOT / name).is_symlink()}


def test_the_wheel_has_every_file_once_and_nothing_beside_daybook(built: Path) -> None:
    expected = {
        f"daybook/{name}" if name.partition("/")[0] in LAYERS else name for name in kept_files()
    }
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(expected)


def test_the_source_distribution_has_every_file_of_the_product(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert kept_files() <= names


def test_foreign_folders_with_names_like_ours_disturb_nothing(python: Path, tmp_path: Path) -> None:
    for layer in ("clients", "bookie", "managed_ledger"):
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "__init__.py").write_text("FOREIGN = True\n")
    for layer in ("wire", "broker"):
        (tmp_path / f"{layer}.py").write_text("FOREIGN = True\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [str(python), "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.endswith("all of it works\n"), done.stdout + done.stderr
    version = subprocess.run(
        [str(python), "-m", "daybook", "version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert version.returncode == 0, version.stderr
