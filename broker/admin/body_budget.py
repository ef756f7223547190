"""The memory of the long bodies of requests to the admin REST, which all of them share.

A body is counted from its first bytes until its request has an answer.  A client decides how slowly
it sends, so without a bound a few hundred clients could fill the memory of a broker.  A request
whose next bytes find no room is refused with NoRoomError.  Short bodies are not counted.

One client (an address) may have half of the memory, so that it keeps no other out alone.
"""

from collections import Counter

from daybook.broker.errors import NoRoomError

BYTES_MAX = 256 << 20  # All staging attempts of a broker together send as much.
_SMALL_BYTES = 64 << 10  # A body up to that size is not counted.


class BodyBudget:
    """One instance per broker."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.taken = 0
        self._bytes_max = bytes_max
        self._of_client = Counter[str]()

    def grown(self, client: str, counted: int, size: int) -> int:
        """Count a body that has `size` bytes now; `counted` of them are counted already.

        Return how many are counted.  Raise NoRoomError, and then nothing has changed.
        """
        if size <= _SMALL_BYTES:
            return counted
        more = size - counted
        of_client = self._of_client[client] + more
        if self.taken + more > self._bytes_max or of_client > self._bytes_max // 2:
            raise NoRoomError(
                "other requests have long bodies, and the memory for them is used up: try again"
            )
        self.taken += more
        self._of_client[client] = of_client
        return size

    def release(self, client: str, counted: int) -> None:
        """Give back what is counted for a body."""
        self.taken -= counted
        self._of_client[client] -= counted
        assert self.taken >= 0
        if not self._of_client[client]:
            del self._of_client[client]
