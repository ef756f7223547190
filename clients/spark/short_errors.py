"""Errors reach the user of Spark as one sentence, without the traceback of a worker.

Spark calls a source in processes of its own, its workers.  It sends the text of an error to the
user together with the traceback, which hides the sentence that says what to do.

A worker leaves the traceback away if its environment has SPARK_HIDE_TRACEBACK, and it ends after an
error.  So the variable is set at the last moment, and only for errors that Daybook means for the
user.  These name the options of a query, also if a client underneath has other names for them.
Everything else keeps its traceback, because it is a defect.  The logger `daybook.spark` has
all tracebacks at level DEBUG.
"""

import dis
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from daybook.clients.spark.option_names import in_options

_P = ParamSpec("_P")
_T = TypeVar("_T")

_HIDE = "SPARK_HIDE_TRACEBACK"
_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "pyspark.sql.streaming.")

_log = logging.getLogger("daybook.spark")


def in_one_sentence(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a method that Spark calls: its errors come without a traceback."""

    @wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(*args, **named)
        except Exception as error:
            _shorten(error)
            raise

    return call


def each_in_one_sentence(items: Iterator[_T]) -> Iterator[_T]:
    """Yield the items; the errors between them come without a traceback."""
    try:
        yield from items
    except Exception as error:
        _shorten(error)
        raise


def _shorten(error: Exception) -> None:
    _log.debug("this error ends the work of a Spark process", exc_info=error)
    if not is_meant_for_users(error):
        return
    error.args = tuple(in_options(each) if isinstance(each, str) else each for each in error.args)
    if _is_worker():
        os.environ[_HIDE] = "1"


def is_meant_for_users(error: Exception) -> bool:
    """Return True for an error that a statement of Daybook raised, with a sentence."""
    if isinstance(error, AssertionError | NotImplementedError | LookupError):
        return False
    if type(error).__module__.partition(".")[0] == "daybook":
        return True
    last = _last(error.__traceback__)
    if last is None:
        return False
    module = str(last.tb_frame.f_globals.get("__name__", ""))
    # A function of C, such as int(), has no frame: its errors show in that of its caller.
    instruction = last.tb_frame.f_code.co_code[last.tb_lasti]
    return module.partition(".")[0] == "daybook" and dis.opname[instruction] == "RAISE_VARARGS"


def _last(traceback: TracebackType | None) -> TracebackType | None:
    """Return the innermost frame."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _is_worker() -> bool:
    """Return True in a process of Spark's own, which ends after an error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(spec, "name", "")).startswith(_WORKERS)
