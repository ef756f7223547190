"""The lag of queries, from what Spark reports of a micro-batch."""

import json
import logging
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from daybook.clients.spark.checkpoint import StreamOffset, encode_offset
from daybook.clients.spark.lag import LagListener, behind
from daybook.clients.spark.offsets import Partition, Progress

T = "persistent://public/default/t"
T0, T1, T2 = Partition(T, 0), Partition(T, 1), Partition(T, 2)
KAFKA = '{"t":{"0":5}}'


def text(partitions: dict[Partition, int]) -> str:
    return json.dumps(
        encode_offset(StreamOffset({p: Progress(next_) for p, next_ in partitions.items()}))
    )


def progress(name: str | None, run: uuid.UUID, *sources: tuple[str | None, str | None]) -> Any:
    found = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, id=uuid.UUID(int=7), runId=run, sources=found)
    )


def test_the_lag_is_what_lies_between() -> None:
    end, latest = text({T0: 5, T1: 9}), text({T0: 12, T1: 9, T2: 4})
    assert behind(end, latest) == {T0: 7, T1: 0}
    assert behind(latest, end) == {T0: 0, T1: 0}


@pytest.mark.parametrize("other", [None, "", "5", KAFKA, '{"version": 9}', '{"0": 5}', "{"])
def test_other_sources_have_no_lag(other: str | None) -> None:
    assert behind(other, text({T0: 5})) == {}
    assert behind(text({T0: 5}), other) == {}


def test_a_listener_keeps_the_latest_lag_of_each_query(caplog: pytest.LogCaptureFixture) -> None:
    """Spark 24613: nobody saw how far a query was behind."""
    registry = CollectorRegistry()
    listener = LagListener(registry)
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    end = text({T0: 5, T1: 9})
    with caplog.at_level(logging.INFO, "daybook.spark"):
        listener.onQueryProgress(progress("archive", first, (end, text({T0: 90, T1: 9}))))
    assert f"archive is 85 offsets behind, 85 of them in {T} partition 0" in caplog.text
    listener.onQueryProgress(
        progress("archive", first, (KAFKA, KAFKA), (end, text({T0: 12, T1: 19})))
    )
    listener.onQueryProgress(progress(None, second, (end, text({T0: 5, T1: 10}))))
    listener.onQueryProgress(progress("kafka", uuid.UUID(int=3), (KAFKA, KAFKA)))
    unnamed = str(uuid.UUID(int=7))
    assert listener.behind() == {
        ("archive", T0): 7,
        ("archive", T1): 10,
        (unnamed, T0): 0,
        (unnamed, T1): 1,
    }
    page = listener.prometheus_text().decode()
    labels = f'partition="1",query="archive",topic="{T}"'
    assert f"daybook_spark_offsets_behind{{{labels}}} 10.0" in page
    assert generate_latest(registry).decode() == page
    ended: Any = SimpleNamespace(runId=first)
    listener.onQueryTerminated(ended)
    listener.onQueryTerminated(ended)
    assert set(listener.behind()) == {(unnamed, T0), (unnamed, T1)}
