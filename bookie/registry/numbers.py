"""Numbers in texts that another process has written."""

_DIGITS_MAX = 10


def number_in(text: str) -> int:
    """Return the number in `text`, or 2**62, which no caller accepts, if it is not a number."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if plain else 1 << 62
