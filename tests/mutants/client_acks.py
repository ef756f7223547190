"""Rules of acknowledgements of the Python client that were sent without receipts."""

from tests.mutants.patch import Edit, Mutant

_BY = "tests:tests/clients/python/test_acks.py"
_ACKS = "daybook.clients.python.acknowledger"

MUTANTS = [
    Mutant(
        id="CA00",
        rule="a new attachment tells what is in doubt -> only flush_acks does",
        module=_ACKS,
        name="Acknowledger.attached",
        replacement=Edit("if tells_moves:", "if False:"),
        caught_by=f"{_BY} -k told_again",
    ),
    Mutant(
        id="CA01",
        rule="what is in doubt is told to brokers that tell of moves -> to all",
        module=_ACKS,
        name="Acknowledger.attached",
        replacement=Edit("if tells_moves:", "if True:"),
        caught_by=f"{_BY} -k hides_moves",
    ),
    Mutant(
        id="CA02",
        rule="a consumer that closes has its acknowledgements confirmed -> only while attached",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.close",
        replacement=Edit("await self._acks.settle()", "pass"),
        caught_by=f"{_BY} -k closed_while",
    ),
]
