"""Fuzzing: bytes that nobody meant, at every place where bytes come in.

    python -m tests.fuzz [TARGET...] --minutes 5        search (`make fuzz MINUTES=5`)
    python -m tests.fuzz TARGET --repeat FILE           one input again, with its traceback
    pytest tests/fuzz                                   the corpus, and some hundred examples each

A *target* (`target`) takes bytes and hands them to one decoder, one kind of file, one record of the
metadata store, or, as a script of a grammar, to a whole session over streams in memory.  Of every
input it is checked (`bounds`) that

- nothing comes out but a value or one of the errors that the target declares;
- what was decoded is, encoded again, decoded to the same;
- it costs a bounded number of steps, and of bytes of memory;
- of a session: it answers or closes, and neither the host nor a healthy client beside it notices.

In reading order: `target`, `choices` (decisions out of bytes), `bounds`, the targets (`codecs`,
`bookie_codecs`, `streams`, `storage`, `records`, `http`, `control`, `broker_session`,
`bookie_session`, `peers`; the sessions play in a `world`), `targets` (all of them), `corpus`,
`worker` (a process that searches in one target, guided by coverage, or by chance: `wander`),
`search` (spreads the time).

`corpus/<target>/` keeps few and small inputs: those that `seeds` makes of valid messages, and those
that reached something new.  What a search finds is in `crashes/`, which is not kept: a finding
becomes a test with a name (`test_found`).
"""
