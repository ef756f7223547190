"""Keep the objects of a worker process out of the full collections of Spark.

Spark's worker collects all garbage after each task (`gc.collect` in `pyspark.daemon`).  That looks
at each object of the process, those of PySpark, PyArrow and the clients included: 80 ms of
processor, in which a task reads 300,000 messages.  These objects stay until the process ends.

`gc.freeze` takes the objects that exist out of all later collections.  That happens once in a
process, so what it keeps by mistake does not grow, and right after a full collection, so there is
hardly any garbage among it.
"""

import gc
import sys

_DAEMON = "pyspark.daemon"
_OLDEST = 2  # the generation that only a full collection looks at


class _State:
    """The state of this process.  The daemon, from which Spark forks its workers, runs no task."""

    def __init__(self) -> None:
        self.collections = -1  # full ones before the first call; -1 before that call
        self.frozen = False


_state = _State()


def spare_collections() -> None:
    """Freeze the objects of this worker, at the first call behind a full collection.

    Each task calls this when it begins.  Other processes than Spark's workers are left alone: the
    program of the user decides there.
    """
    state = _state
    if state.frozen or not _is_worker():
        return
    collections = gc.get_stats()[_OLDEST]["collections"]
    if state.collections < 0:  # The modules and clients of the first task are still to come.
        state.collections = collections
    elif collections > state.collections:
        state.frozen = True
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
