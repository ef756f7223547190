"""A metadata store of its own for each test."""

import pytest

from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import MemorySession, MemoryStore


@pytest.fixture
def ensemble() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def store(ensemble: MemoryStore) -> MemorySession:
    return ensemble.session("me")
