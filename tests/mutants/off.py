"""Mutants that are off, and why: mostly, the code that they would break does not exist yet."""

OFF: dict[str, str] = {
    "M30": "an unconfirmed append ends in doubt, and no code here sends it again",
    "M32": "no single add fails: a bookie does (M20, M25), or the writer stops (M29)",
    "M46": "the index is rebuilt from the log before the bookie serves",
}
