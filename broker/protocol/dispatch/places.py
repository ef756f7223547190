"""The names by which dispatch machines know a consumer, an entry and a range of keys."""

from typing import TypeAlias

ConsumerKey: TypeAlias = int
Place: TypeAlias = tuple[int, int]  # ledger id, entry id
SlotRange: TypeAlias = tuple[int, int]  # first and last slot of hashed keys
