"""How full the list of a log's ledgers is, and what that still allows.

The metadata store limits the size of a list.  A list at the limit could neither be sealed nor taken
over, so its growth slows down long before, and ends:

    0          1/8                 1/2       3/4              15/16            1
    |  rolls   |  rolls are rarer   | alarm   |  no roll       |  no append     |

* Above an eighth of the limit a ledger has to be larger and older before it is rolled: by a factor
  of two for each further sixteenth, 1024 in the last sixteenth below three quarters.
* Above three quarters no ledger is rolled.  The present one continues; only a takeover adds one.
* Above fifteen sixteenths no append is taken.  The present ledger stays empty then, and the next
  opening removes an empty ledger from the list.  So a log can be opened, read, acknowledged and
  trimmed any number of times without any growth of its list.

The last sixteenth holds what one opening may add: the lengths of two ledgers, one more ledger, and
two properties.
"""

from dataclasses import dataclass

# All in sixteenths of the limit.
_SLOWER_ABOVE = 2
_ALARM_AT = 8
_NO_ROLL_ABOVE = 12
_NO_APPEND_ABOVE = 15
_PARTS = 16


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a list that has `bytes` of at most `bytes_max`."""

    bytes: int
    bytes_max: int

    @property
    def stretch(self) -> int:
        """The factor by which a ledger has to be larger and older than configured to be rolled."""
        steps = _PARTS * self.bytes // self.bytes_max - _SLOWER_ABOVE + 1
        return 1 << min(max(0, steps), _NO_ROLL_ABOVE - _SLOWER_ABOVE)

    @property
    def alarming(self) -> bool:
        """True if half of the list is used, which operators should know."""
        return self._reaches(_ALARM_AT)

    @property
    def allows_roll(self) -> bool:
        return not self._reaches(_NO_ROLL_ABOVE)

    @property
    def allows_append(self) -> bool:
        return not self._reaches(_NO_APPEND_ABOVE)

    def _reaches(self, parts: int) -> bool:
        return _PARTS * self.bytes >= parts * self.bytes_max
