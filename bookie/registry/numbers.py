"""A number in a text that somebody else has written."""

_DIGITS_MAX = 10


def number_in(text: str) -> int:
    """The number that is written there; one that none can be if it is no number."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if plain else 1 << 62
