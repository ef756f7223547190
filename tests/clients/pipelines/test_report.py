"""The progress of a pipeline: sums of micro-batches, lines, the final table."""

from daybook.clients.pipelines.report import BatchReport, Line, Tally, offsets_in, summary, table

TOPIC = "persistent://public/default/t"


def daybook(*nexts: int) -> str:
    those = ", ".join(f'"{number}": {{"next": {at}}}' for number, at in enumerate(nexts))
    return f'{{"topics": {{"{TOPIC}": {{{those}}}}}, "version": 2}}'


def report(batch_id: int, rows: int, start: str | None, end: str, latest: str) -> BatchReport:
    return BatchReport("q", batch_id, rows, start, end, latest)


def test_offsets_of_both_sources_are_understood() -> None:
    assert offsets_in(daybook(3, 5)) == {(TOPIC, 0): 3, (TOPIC, 1): 5}
    assert offsets_in('{"t": {"0": 7}}') == {("t", 0): 7}
    for other in (None, "", "5", "[]", '{"version": 9}', '{"logOffset": 3}'):
        assert offsets_in(other) == {}


def test_each_micro_batch_counts_once() -> None:
    tally = Tally()
    first = report(4, 10, daybook(2, 0), daybook(7, 5), daybook(9, 6))
    assert tally.add(first)
    assert not tally.add(first)
    assert tally.behind == 3
    assert tally.add(report(5, 3, daybook(7, 5), daybook(9, 6), daybook(9, 6)))
    assert (tally.read, tally.written, tally.batches, tally.behind) == (13, 13, 2, 0)
    assert table(tally) == [
        {"topic": "public/default/t", "partition": 0, "from": 2, "to": 9, "behind": 0},
        {"topic": "public/default/t", "partition": 1, "from": 0, "to": 6, "behind": 0},
    ]
    assert summary(tally, None, 2.0) == {
        "read": 13,
        "written": 13,
        "batches": 2,
        "seconds": 2.0,
        "rate": 6,
    }


def test_what_is_written_late_or_a_dead_letter_is_told_if_there_is_any() -> None:
    rows, letters = Tally(), Tally()
    rows.add(BatchReport("q", 0, 10, None, daybook(10), daybook(10), 2, 1))
    letters.add(BatchReport("d", 0, 10, None, daybook(10), daybook(10), 0, 3))
    assert table(rows)[0]["from"] is None
    found = summary(rows, letters, 1.0)
    assert (found["written"], found["dead letters"], found["late, left out"]) == (1, 3, 2)
    assert Line("p", 0.0).text(rows, letters, 2.0) == (
        "p: 10 messages read, 5/s, 1 written, 3 dead letters, 0 behind."
    )


def test_the_rate_is_that_since_the_line_before() -> None:
    rows, line = Tally(), Line("p", 100.0)
    rows.add(report(0, 1000, None, daybook(1000), daybook(5000)))
    assert line.text(rows, None, 110.0) == (
        "p: 1,000 messages read, 100/s, 4,000 behind (about 40 s)."
    )
    rows.add(report(1, 2000, daybook(1000), daybook(3000), daybook(5000)))
    assert line.text(rows, None, 111.0) == (
        "p: 3,000 messages read, 2,000/s, 2,000 behind (about 1 s)."
    )
    assert line.text(rows, None, 121.0) == "p: 3,000 messages read, 0/s, 2,000 behind."
