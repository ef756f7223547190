"""The sentence about an option that does not exist.  Names of options are compared without case."""

from collections.abc import Sequence
from difflib import get_close_matches


def unknown_option(name: str, names: Sequence[str], of: str = "") -> str:
    """Return the sentence, with the option that may be meant; `of` says what has the options."""
    spelling = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), spelling, n=1)
    hint = f": did you mean {spelling[close[0]]!r}?" if close else ";"
    return f"unknown option {name!r}{of}{hint} there are: {', '.join(names)}"
