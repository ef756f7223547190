"""How full the list of a log's ledgers is, and what that still allows.  Pure.

The metadata store takes a list of so many bytes and not one more.  A list that has reached that
could neither be sealed nor taken over, so its growth slows down long before, and ends:

    0          1/8                 1/2       3/4              15/16            1
    |  rolls   |  rolls are rarer   | alarm   |  no roll       |  no append     |

* Above an eighth of the limit a ledger has to be larger and older before it is rolled: by a factor
  of two for each further sixteenth, 1024 in the last sixteenth below three quarters.
* Above three quarters no ledger is rolled.  The present one goes on; only a takeover adds a row.
* Above fifteen sixteenths no append is taken.  The present ledger stays empty then, and an empty
  ledger leaves the list at the next opening: a log can be opened, read, acknowledged and trimmed
  any number of times without any growth of its list.

The last sixteenth holds what one opening may add: the lengths of two ledgers, a row, two
properties.
"""

from dataclasses import dataclass

_SLOWER_ABOVE = 2  # of 16 parts
_ALARM_AT = 8
_NO_ROLL_ABOVE = 12
_NO_APPEND_ABOVE = 15
_PARTS = 16


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a list that takes `bytes` of the `bytes_max` that it may take."""

    bytes: int
    bytes_max: int

    @property
    def stretch(self) -> int:
        """How many times larger and older than configured a ledger is when it is rolled."""
        steps = _PARTS * self.bytes // self.bytes_max - _SLOWER_ABOVE + 1
        return 1 << min(max(0, steps), _NO_ROLL_ABOVE - _SLOWER_ABOVE)

    @property
    def alarming(self) -> bool:
        """People should be told: half of the list is used."""
        return self._reaches(_ALARM_AT)

    @property
    def allows_roll(self) -> bool:
        return not self._reaches(_NO_ROLL_ABOVE)

    @property
    def allows_append(self) -> bool:
        return not self._reaches(_NO_APPEND_ABOVE)

    def _reaches(self, parts: int) -> bool:
        return _PARTS * self.bytes >= parts * self.bytes_max
