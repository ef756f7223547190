"""Fuzzing: arbitrary bytes at every place where bytes come in.

    python -m tests.fuzz [TARGET...] --minutes 5        search (`make fuzz MINUTES=5`)
    python -m tests.fuzz TARGET --repeat FILE           run one input again, with its traceback
    pytest tests/fuzz                                   the corpus, and about 100 examples each

A *target* (`target`) takes bytes and hands them to one decoder, one kind of file, one record of the
metadata store, or, as a script of a grammar, to a whole session over streams in memory.  Each
input is checked (`bounds`):

- the target returns a value or raises one of its declared errors;
- a decoded value, encoded again, decodes to the same;
- the number of steps and the bytes of memory are bounded;
- a session answers or closes, and neither the host nor a healthy client beside it notices.

In reading order: `target`, `choices` (bytes become decisions), `bounds`, the targets (`codecs`,
`bookie_codecs`, `streams`, `storage`, `records`, `http`, `control`, `broker_session`,
`bookie_session`, `peers`; the sessions run in a `world`), `targets` (all of them), `corpus`,
`worker` (a process that searches in one target, guided by coverage, or by chance: `wander`),
`search` (spreads the time).

`corpus/<target>/` keeps few and small inputs: those that `seeds` makes from valid messages, and
those that reached something new.  A search writes its findings to `crashes/`, which is not kept: a
finding becomes a test with a name (`test_found`).
"""
