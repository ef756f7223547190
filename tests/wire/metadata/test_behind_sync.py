"""A read that is sent directly behind a sync counts only if the sync has a good answer."""

from collections.abc import Callable

from daybook.wire.metadata.zookeeper import _BehindSync


class Result:
    """An answer of kazoo."""

    def __init__(self, value: str = "", exception: Exception | None = None) -> None:
        self.value = value
        self.exception = exception
        self.links: list[Callable[[Result], None]] = []

    def rawlink(self, callback: Callable[["Result"], None]) -> None:
        self.links.append(callback)


def test_a_read_without_its_sync_has_failed() -> None:
    lost = ConnectionError("lost")
    both = _BehindSync(Result(exception=lost), Result("read over another connection"))
    assert both.exception is lost


def test_a_read_may_fail_although_its_sync_is_good() -> None:
    lost = ConnectionError("lost")
    assert _BehindSync(Result("synced"), Result(exception=lost)).exception is lost


def test_the_answer_to_the_read_answers_the_pair() -> None:
    synced, read, heard = Result("synced"), Result("read"), list[object]()
    both = _BehindSync(synced, read)
    both.rawlink(heard.append)
    assert not synced.links
    read.links[0](read)
    assert heard == [both]
    assert (both.exception, both.value) == (None, "read")
