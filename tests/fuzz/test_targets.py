"""Every target runs over its corpus, and over a fixed set of examples."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz import corpus
from tests.fuzz.bounds import check_memory, check_steps, examine
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.strategies import mutated

# The parser of protobuf's text form decodes strings in a way that Python warns of.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
_MEASURED_MAX = 3  # per target whose inputs are whole sessions
_MANY_EXAMPLES = 100


def test_every_target_is_where_it_is_looked_for() -> None:
    for name in TARGETS:
        assert TARGETS[name].name == name


@each_target
def test_the_corpus_breaks_no_promise(target: Target) -> None:
    inputs = sorted(corpus.beginnings(target).values(), key=len)
    for data in inputs:
        examine(target, data)
    measured = inputs if target.examples >= _MANY_EXAMPLES else inputs[-_MEASURED_MAX:]
    for data in measured:
        check_steps(target, data)
        check_memory(target, data)


@each_target
def test_examples_break_no_promise(target: Target) -> None:
    @settings(
        max_examples=target.examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_inputs(target))
    def check(data: bytes) -> None:
        examine(target, data)

    check()


def _inputs(target: Target) -> SearchStrategy[bytes]:
    known = st.sampled_from(sorted(corpus.beginnings(target).values()))
    return st.one_of(st.binary(max_size=200), mutated(known), mutated(known | target.valid)).filter(
        lambda data: len(data) <= 2 * target.input_bytes_max
    )
