"""References from a part to its whole."""

import pytest

from daybook.wire.weakly import weak, weakly


class Whole:
    def add(self, first: int, *, second: int) -> int:
        return first + second


def test_a_part_reaches_its_whole_as_long_as_somebody_has_it() -> None:
    whole = Whole()
    get, add = weak(whole), weakly(whole.add)
    assert get() is whole
    assert add(1, second=2) == 3
    del whole
    with pytest.raises(ReferenceError):
        get()
    with pytest.raises(ReferenceError):
        add(1, second=2)
