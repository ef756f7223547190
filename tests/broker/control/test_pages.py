"""Long lists in pages: every name is in exactly one page."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.broker.admin.pages import Pages, page
from daybook.broker.errors import PreconditionError
from tests.broker.control.test_admin import TOPICS, two_brokers

NAMES = [f"persistent://public/default/t-{number}" for number in range(7)]


async def test_a_list_of_topics_comes_in_pages() -> None:
    async with two_brokers() as (one, _):
        one.topics.shared.update(NAMES)
        assert await one("GET", TOPICS) == NAMES
        assert await one("GET", TOPICS, limit="3") == NAMES[:3]
        assert await one("GET", TOPICS, limit="3", after=NAMES[2]) == NAMES[3:6]
        assert await one("GET", TOPICS, after=NAMES[5]) == NAMES[6:]
        assert await one("GET", TOPICS, after=NAMES[6], limit="3") == []
        assert await one("GET", TOPICS, limit="2", after="t-2") == NAMES[3:5]
        for other in (
            "persistent://public/other/t-2",
            "non-persistent://public/default/t-2",
            "public/t-2",
        ):
            with pytest.raises(PreconditionError, match="no topic of this list"):
                await one("GET", TOPICS, limit="2", after=other)
        for wrong in ("0", "-1", "many", "²"):
            with pytest.raises(PreconditionError, match="limit must be a number from 1 on"):
                await one("GET", TOPICS, limit=wrong)


async def test_pages_that_are_read_one_after_the_other_cost_one_list(
    autojump_clock: MockClock,
) -> None:
    pages, reads = Pages(), list[int]()

    async def read() -> list[str]:
        reads.append(1)
        return NAMES

    async def ask(after: str, limit: str = "3") -> object:
        return await pages.page("topics", read, after=after, limit=limit)

    assert await ask("") == NAMES[:3]
    assert await ask(NAMES[2]) == NAMES[3:6]
    assert len(reads) == 1
    assert await pages.page("other", read, after=NAMES[2], limit="3") == NAMES[3:6]
    assert len(reads) == 2, "another list"
    assert await ask("") == NAMES[:3]
    assert len(reads) == 3, "the first page is always read"
    await trio.sleep(11)
    assert await ask(NAMES[2]) == NAMES[3:6]
    assert len(reads) == 4, "what was remembered is old"
    assert await ask(NAMES[5]) == NAMES[6:]
    assert len(reads) == 4
    assert not pages._names, "the last page drops the list"
    assert await ask("", limit="") == NAMES
    assert not pages._names, "nobody reads pages"


@given(st.sets(st.text("abc", min_size=1, max_size=3)), st.integers(1, 5), st.data())
def test_a_name_that_stays_is_in_exactly_one_page(
    names: set[str], limit: int, data: st.DataObject
) -> None:
    """Others come and go between the pages."""
    staying, seen, after = sorted(names), list[str](), ""
    while True:
        others = data.draw(st.sets(st.text("abc", min_size=1, max_size=3), max_size=3))
        found = page(sorted(names | others), after, limit)
        if not found:
            break
        assert len(found) <= limit
        seen += found
        after = found[-1]
    assert [name for name in seen if name in names] == staying
