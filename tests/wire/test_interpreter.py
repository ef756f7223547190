"""How an interpreter was built, by the words of its configuration, and which one `make` takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from daybook.wire import interpreter
from daybook.wire.interpreter import Build, build_of, describe

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "python.sh"

# `sysconfig.get_config_var("CONFIG_ARGS")` of builds that exist, without words about paths.
DEBIAN = (
    "'--enable-shared' '--prefix=/usr' '--libdir=/usr/lib/x86_64-linux-gnu' '--enable-ipv6'"
    " '--enable-loadable-sqlite-extensions' '--with-dbmliborder=bdb:gdbm'"
    " '--with-computed-gotos' '--without-ensurepip' '--with-system-expat' '--with-dtrace'"
    " '--with-wheel-pkg-dir=/usr/share/python-wheels/' '--with-ssl-default-suites=openssl'"
    " 'MKDIR_P=/bin/mkdir -p' '--with-system-ffi' 'CC=x86_64-linux-gnu-gcc'"
    " 'CFLAGS=-g   -fstack-protector-strong -Wformat -Werror=format-security '"
)
PYENV = (
    "'--prefix=/opt/3.11.7' '--enable-shared' '--libdir=/opt/3.11.7/lib'"
    " 'LDFLAGS=-L/opt/3.11.7/lib -Wl,-rpath,/opt/3.11.7/lib' 'CPPFLAGS=-I/opt/3.11.7/include'"
)
UV = (
    "'--build=x86_64-unknown-linux-gnu' '--host=x86_64-unknown-linux-gnu' '--prefix=/install'"
    " '--with-openssl=/tools/deps' '--with-system-expat' '--without-ensurepip'"
    " '--enable-shared' '--enable-optimizations' '--with-lto' 'CC=clang'"
)
DOCKER = (
    "'--build=x86_64-linux-gnu' '--enable-loadable-sqlite-extensions' '--enable-optimizations'"
    " '--enable-option-checking=fatal' '--enable-shared' '--with-lto' '--with-ensurepip'"
)


@pytest.mark.parametrize(
    ("configured", "build"),
    [
        (DEBIAN, Build.OPTIMISED),
        (DEBIAN.replace("x86_64-linux", "aarch64-linux"), Build.OPTIMISED),
        (DEBIAN.replace("x86_64-linux", "riscv64-linux"), Build.UNKNOWN),
        (PYENV, Build.PLAIN),
        (PYENV + " '--enable-optimizations' '--with-lto'", Build.OPTIMISED),
        (UV, Build.OPTIMISED),
        (DOCKER, Build.OPTIMISED),
        ("'--enable-optimizations=yes'", Build.OPTIMISED),
        ("'--enable-optimizations=no'", Build.PLAIN),
        ("'--enable-optimizations' '--disable-optimizations'", Build.PLAIN),
        ("'--with-pydebug' '--enable-optimizations'", Build.DEBUG),
        ("", Build.UNKNOWN),  # conda, and `./configure` without a word
        (None, Build.UNKNOWN),  # Windows
    ],
)
def test_the_words_of_the_configuration_tell_the_build(
    configured: str | None, build: Build
) -> None:
    assert build_of(configured) is build


def test_a_debug_build_is_never_optimised() -> None:
    assert build_of(DOCKER, debug=True) is Build.DEBUG


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (Build.OPTIMISED, "Python 3.11.7, optimised"),
        (
            Build.PLAIN,
            "Python 3.11.7, not optimised (built without --enable-optimizations):"
            " see docs/performance.md",
        ),
        (Build.DEBUG, "Python 3.11.7, not optimised (a debug build): see docs/performance.md"),
        (
            Build.UNKNOWN,
            "Python 3.11.7 (its configuration does not say whether it is optimised)",
        ),
    ],
)
def test_one_line_says_it(build: Build, line: str) -> None:
    assert describe(build, "3.11.7") == line


def test_another_implementation_of_python_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert interpreter.running_build() is Build.UNKNOWN


def test_the_file_runs_by_its_path_as_it_does_in_the_package() -> None:
    command = [sys.executable, "-I", str(ROOT / "wire" / "interpreter.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{interpreter.running_build().value}\n"


class Fakes:
    """Directories on PATH with programs that answer as interpreters do."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.path: list[str] = []

    def directory(self, name: str, **builds: str) -> None:
        """Add a directory, in which `python3_12="plain"` is the program `python3.12`.

        `fails` is an interpreter that is too old or has no `venv`, or a shim without a version.
        """
        directory = self._root / name
        directory.mkdir()
        self.path.append(str(directory))
        for program, build in builds.items():
            file = directory / program.replace("_", ".")
            answer = "exit 1" if build == "fails" else f"echo {build}"
            file.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 12 && exit 0\n{answer}\n')
            file.chmod(0o755)

    def choose(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["/bin/sh", str(TOOL), *words],
            env={"PATH": ":".join(self.path)},
            capture_output=True,
            text=True,
            check=False,
        )

    def chosen(self, *words: str) -> str:
        done = self.choose(*words)
        assert done.returncode == 0, done.stderr
        return str(Path(done.stdout.strip()).relative_to(self._root))


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        # python3 is optimised: nothing else is looked at.
        ({"python3": "optimised", "python3_14": "optimised"}, {}, "a/python3"),
        # Another one is, behind it on PATH or beside it.
        ({"python3": "plain"}, {"python3": "optimised"}, "b/python3"),
        ({"python3": "plain", "python3_13": "optimised"}, {}, "a/python3.13"),
        # The version that python3 names comes first (the fakes are 3.12), then the newest.
        (
            {"python3": "fails", "python3_14": "optimised"},
            {"python3_12": "optimised"},
            "b/python3.12",
        ),
        (
            {"python3": "fails", "python3_11": "optimised"},
            {"python3_13": "optimised"},
            "b/python3.13",
        ),
        # None is known to be optimised: python3 is taken, as ever.
        ({"python3": "plain", "python3_13": "unknown"}, {}, "a/python3"),
        ({"python3": "unknown", "python3_13": "plain"}, {}, "a/python3"),
        ({"python3": "unknown", "python3_13": "optimised"}, {}, "a/python3.13"),
        # An interpreter that is too old or cannot make an environment is left out.
        ({"python3": "fails", "python3_12": "plain"}, {"python3_11": "fails"}, "a/python3.12"),
        ({"python3": "plain", "python3_13": "fails"}, {"python3_13": "optimised"}, "b/python3.13"),
    ],
)
def test_make_takes_an_optimised_one(
    fakes: Fakes, first: dict[str, str], second: dict[str, str], chosen: str
) -> None:
    fakes.directory("a", **first)
    fakes.directory("b", **second)
    assert fakes.chosen() == chosen


def test_another_choice_than_python3_is_told(fakes: Fakes) -> None:
    fakes.directory("a", python3="plain", python3_13="optimised")
    (line,) = fakes.choose().stderr.splitlines()
    assert "a/python3.13, which is optimised" in line
    assert "a/python3 takes it" in line


def test_a_plain_one_without_an_alternative_is_told(fakes: Fakes) -> None:
    fakes.directory("a", python3="plain")
    assert "a/python3 is not optimised" in fakes.choose().stderr
    fakes.directory("b", python3="plain")
    assert "docs/performance.md" in fakes.choose().stderr


def test_a_named_one_wins(fakes: Fakes) -> None:
    fakes.directory("a", python3="optimised", python3_11="plain")
    done = fakes.choose("python3.11")
    assert (done.stdout, done.stderr) == ("python3.11\n", "")


def test_a_named_one_that_does_not_fit_is_refused(fakes: Fakes) -> None:
    fakes.directory("a", python3="optimised", python3_11="fails")
    done = fakes.choose("python3.11")
    assert (done.returncode, done.stdout) == (1, "")
    assert "python3.11 is not Python 3.11 or newer with venv" in done.stderr


def test_without_any_the_error_says_what_helps(fakes: Fakes) -> None:
    fakes.directory("a", python3="fails")
    done = fakes.choose()
    assert (done.returncode, done.stdout) == (1, "")
    assert "name another one with make PYTHON=..." in done.stderr
