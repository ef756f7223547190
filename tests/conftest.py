"""Settings of all tests: the suites that fakes and real things share assert like tests.

No test depends on how fast the machine is, nor on chance: Hypothesis measures no time and draws the
same examples each time.  With `--hypothesis-profile=default` it draws others.
"""

import logging
import signal
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, settings

from tests.virtual_time import keep_time_for_threads

pytest.register_assert_rewrite(
    "tests.conformance", "tests.harness", "tests.simulation", "tests.real.traffic"
)

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# pytest-trio and the product look the function up at each call.
trio.to_thread.run_sync = keep_time_for_threads()  # type: ignore[assignment]

# A shell that runs the tests in the background lets them ignore Ctrl-C, and so all their children.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest, the longest first (150 to 25 seconds on a quiet machine), so that no
# worker begins a long one (`--dist loadfile`) when all others are done.
LONG = [
    "real/test_exactly_once.py",
    "real/test_exchanged_credentials.py",
    "real/test_faults.py",
    "real/test_spark.py",
    "real/test_locked_clients.py",
    "clients/cli/test_standalone.py",
    "real/test_replication.py",
    "real/test_pipelines.py",
    "real/test_readiness.py",
    "soak/test_soak.py",
    "real/test_standalone_storage.py",
    "real/test_standalone_security.py",
    "real/test_official_client.py",
    "real/test_replay_kills.py",
    "real/test_demo.py",
    "real/test_spark_write.py",
    "real/test_bad_input.py",
    "real/test_zookeeper_security.py",
    "real/test_archive.py",
    "real/test_pages.py",
    "real/test_doctor.py",
    "real/test_package.py",
    "real/test_ledgers.py",
    "real/test_full_disk.py",
    "real/test_cli.py",
    "real/test_readme.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first; keep the order otherwise."""
    root = Path(__file__).parent
    places = {root / name: place for place, name in enumerate(LONG)}
    assert all(path.is_file() for path in places), "a file has moved"
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


class _Bugs(logging.Handler):
    """Keeps the lines in which a part of the product says that it met a bug of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "bug" in record.msg and record.name.startswith("daybook."):
            self.lines.append(record.getMessage())


_BUGS = _Bugs()
logging.getLogger().addHandler(_BUGS)


@pytest.fixture(autouse=True)
def bugs(request: pytest.FixtureRequest) -> Generator[list[str]]:
    """Return the bugs that the product has logged; a test that expects some has to remove them."""
    _BUGS.lines.clear()
    yield _BUGS.lines
    assert not _BUGS.lines or request.path.parent.name == "mutants"
