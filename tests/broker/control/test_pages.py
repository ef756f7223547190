"""Long lists in pages: every name is in exactly one page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.admin.pages import page
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
        for wrong in ("0", "-1", "many", "²"):
            with pytest.raises(PreconditionError, match="limit must be a number from 1 on"):
                await one("GET", TOPICS, limit=wrong)


@given(st.sets(st.text("abc", min_size=1, max_size=3)), st.integers(1, 5), st.data())
def test_a_name_that_stays_is_in_exactly_one_page(
    names: set[str], limit: int, data: st.DataObject
) -> None:
    """Others come and go between the pages."""
    staying, seen, after = sorted(names), list[str](), ""
    while True:
        others = data.draw(st.sets(st.text("abc", min_size=1, max_size=3), max_size=3))
        found = page(sorted(names | others), after, str(limit))
        if not found:
            break
        assert len(found) <= limit
        seen += found
        after = found[-1]
    assert [name for name in seen if name in names] == staying
