"""The error of archives."""


class ArchiveError(ValueError):
    """An archive that cannot be used so, in one sentence with the remedy."""
