"""The errors of archives."""


class ArchiveError(ValueError):
    """An archive that cannot be used so, in one sentence with the remedy."""


class DefinitionError(Exception):
    """The definition of a schema cannot be had from an archive, in one sentence with the remedy.

    It is no ValueError, which would say of a message that it is not of its schema.
    """
