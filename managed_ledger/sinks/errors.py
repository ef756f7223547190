"""The errors of sinks.

SinkRefusedError        the rules of the sink do not allow the request (`protocol.sink`); final
SinkError
  StagedEntryError      an entry that cannot be staged, or a body that does not parse; final
  StagingLostError      a staging ledger that was to be committed is gone, open or another one's;
                        final: the task has to run again
  SinkCorruptError      a record, a manifest or a staging ledger that cannot be true
"""

from daybook.managed_ledger.protocol.sink import SinkRefusedError

__all__ = [
    "SinkCorruptError",
    "SinkError",
    "SinkRefusedError",
    "StagedEntryError",
    "StagingLostError",
]


class SinkError(Exception):
    """A request about a sink cannot be carried out."""


class StagedEntryError(SinkError):
    """The entry cannot be staged as it is."""


class StagingLostError(SinkError):
    """The staging of a task is not there, or not complete."""


class SinkCorruptError(SinkError):
    """Something that is stored about a sink cannot be true."""
