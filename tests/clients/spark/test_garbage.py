"""A worker of Spark freezes its objects once, behind a full collection; other processes never."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from daybook.clients.spark import garbage


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Count the freezes of a process that has had none; nothing is really frozen."""
    found: list[bool] = []
    monkeypatch.setattr(garbage, "_state", garbage._State())
    monkeypatch.setattr(gc, "freeze", lambda: found.append(True))
    return found


def _main_is(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    main = ModuleType("__main__")
    main.__dict__["__spec__"] = None if name is None else SimpleNamespace(name=name)
    monkeypatch.setitem(sys.modules, "__main__", main)


def test_a_worker_freezes_its_objects_once_behind_a_full_collection(
    frozen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _main_is(monkeypatch, "pyspark.daemon")
    garbage.spare_collections()
    garbage.spare_collections()
    assert not frozen, "garbage that nobody has collected would stay"
    gc.collect()
    garbage.spare_collections()
    gc.collect()
    garbage.spare_collections()
    assert len(frozen) == 1, "what is kept by mistake must not grow"


@pytest.mark.parametrize("name", [None, "my_job", "pytest"])
def test_the_process_of_a_user_is_left_alone(
    name: str | None, frozen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _main_is(monkeypatch, name)
    for _ in range(2):
        garbage.spare_collections()
        gc.collect()
    assert not frozen
