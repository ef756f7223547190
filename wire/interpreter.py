"""The build of the Python that runs: whether its compiler optimised it with a profile.

    interpreter.describe()    "Python 3.11.2, optimised"

An interpreter that is built from source has no such optimisation unless `--enable-optimizations` is
asked for, and then all of Daybook is slower (`docs/performance.md`).  Nothing but the configuration
of the build tells it: where that says nothing, the answer is unknown.

`tools/python.sh` also runs this file with other interpreters, by its path:

    python3.13 -I wire/interpreter.py

Then it prints the word of `Build`, or fails if Daybook cannot have a virtual environment of that
Python.  So the file imports only the standard library.
"""

import platform
import shlex
import sys
import sysconfig
from enum import Enum
from importlib.util import find_spec

OLDEST = (3, 11)
_HINT = "see docs/performance.md"
# Debian and Ubuntu build with a profile by `make profile-opt`, not by a word for `configure`.  On
# rare machines they build without one, and the configuration does not show it.
_DEBIAN = "--with-wheel-pkg-dir=/usr/share/python-wheels/"
_DEBIAN_WITH_PROFILE = (
    "--libdir=/usr/lib/x86_64-linux-gnu",
    "--libdir=/usr/lib/aarch64-linux-gnu",
)


class Build(Enum):
    """The optimisation of an interpreter, as far as it is known."""

    OPTIMISED = "optimised"
    PLAIN = "plain"
    DEBUG = "debug"
    UNKNOWN = "unknown"


def build_of(configured: str | None, *, debug: bool = False) -> Build:
    """Return what the words tell with which an interpreter was configured (`CONFIG_ARGS`).

    Windows and some distributions have no such words: this is not the same as a plain build.
    """
    if debug:
        return Build.DEBUG
    words = shlex.split(configured or "")
    if not words:
        return Build.UNKNOWN
    optimised = False
    for word in words:  # `configure` takes the last word about the same thing
        name, _, value = word.partition("=")
        if name == "--with-pydebug" and value != "no":
            return Build.DEBUG
        if name == "--enable-optimizations":
            optimised = value != "no"
        elif name == "--disable-optimizations":
            optimised = False
    if optimised:
        return Build.OPTIMISED
    if _DEBIAN in words:
        known = any(word in words for word in _DEBIAN_WITH_PROFILE)
        return Build.OPTIMISED if known else Build.UNKNOWN
    return Build.PLAIN


def running_build() -> Build:
    """Return what is known about the interpreter that runs this."""
    if sys.implementation.name != "cpython":
        return Build.UNKNOWN
    debug = bool(sysconfig.get_config_var("Py_DEBUG"))
    return build_of(sysconfig.get_config_var("CONFIG_ARGS"), debug=debug)


def describe(build: Build | None = None, version: str | None = None) -> str:
    """Return one line: the version of Python, how it was built, and where more is said of that."""
    version = version or platform.python_version()
    match build or running_build():
        case Build.OPTIMISED:
            return f"Python {version}, optimised"
        case Build.PLAIN:
            why = "built without --enable-optimizations"
            return f"Python {version}, not optimised ({why}): {_HINT}"
        case Build.DEBUG:
            return f"Python {version}, not optimised (a debug build): {_HINT}"
        case Build.UNKNOWN:
            return f"Python {version} (its configuration does not say whether it is optimised)"


def _can_have_an_environment() -> bool:
    """Return True if `-m venv` works; Debian has its parts in a package of their own."""
    return all(find_spec(module) is not None for module in ("ensurepip", "venv"))


if __name__ == "__main__":
    if sys.version_info < OLDEST or not _can_have_an_environment():
        sys.exit(1)
    sys.stdout.write(f"{running_build().value}\n")
