"""The catalogue: the mutants of this package, by area, and those that are off for lack of code.

The model checker has more, for rules that no storm covers; `everything` has them all.
"""

from tests.mutants import (
    agreement,
    answers,
    blocks,
    bounds,
    chain,
    clearing,
    client_features,
    clients,
    compaction,
    cursor,
    deduplication,
    deferred,
    dispatch,
    ending,
    following,
    growth,
    hand_over,
    holes,
    key_shared,
    ledger,
    limbo,
    log,
    non_persistent,
    ownership,
    policies,
    producer,
    python_client,
    replication,
    schemas,
    shells,
    space,
    stalls,
    storage,
    stuck,
    topic_lists,
    topics,
    turns,
    watchdog,
)
from tests.mutants.off import OFF
from tests.mutants.patch import Mutant

_AREAS = (
    ledger,
    blocks,
    deferred,
    following,
    agreement,
    storage,
    limbo,
    space,
    bounds,
    replication,
    chain,
    log,
    stuck,
    cursor,
    holes,
    clearing,
    dispatch,
    key_shared,
    stalls,
    producer,
    python_client,
    deduplication,
    compaction,
    policies,
    hand_over,
    ownership,
    ending,
    clients,
    client_features,
    schemas,
    shells,
    topics,
    topic_lists,
    growth,
    non_persistent,
    turns,
    answers,
    watchdog,
)

MUTANTS: list[Mutant] = [mutant for area in _AREAS for mutant in area.MUTANTS]
BY_ID: dict[str, Mutant] = {mutant.id: mutant for mutant in MUTANTS}

assert len(BY_ID) == len(MUTANTS), "a mutant is there twice"
assert not BY_ID.keys() & OFF.keys(), "a mutant is on and off"
