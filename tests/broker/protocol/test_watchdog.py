"""A broker ends itself only if it ran, answered nobody, and another broker serves."""

import pytest

from daybook.broker.protocol.watchdog import Effect, WatchdogLimits, WatchdogProtocol

LIMITS = WatchdogLimits()
ASK, END = Effect.ASK, Effect.END


class Broker:
    """A machine, and a clock that ticks for it."""

    def __init__(self, *, age_s: float = LIMITS.quiet_s) -> None:
        self.now_s = 1000.0
        self.starved_s: float | None = 0.0
        self.machine = WatchdogProtocol(LIMITS, now_s=self.now_s)
        assert self.run(age_s, answered=True) == []

    def tick(self, after_s: float = LIMITS.tick_s) -> list[Effect]:
        self.now_s += after_s
        return self.machine.ticked(self.now_s, self.starved_s)

    def run(self, seconds: float, *, answered: bool = False) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(int(seconds / LIMITS.tick_s)):
            effects += self.tick()
            if answered:
                self.machine.answered(self.now_s)
        return effects

    def others_serve(self, serve: bool | None, after_s: float = 1.0) -> list[Effect]:
        self.now_s += after_s
        return self.machine.others_serve(serve, self.now_s)


def test_a_broker_that_answers_nobody_ends_when_another_one_serves() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s - 1) == []
    assert broker.tick() == [ASK]
    assert broker.others_serve(True) == [END]


def test_one_answer_restarts_the_count() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s - 1) == []
    broker.machine.answered(broker.now_s)
    assert broker.run(LIMITS.silent_s - 1) == []
    assert broker.tick() == [ASK]


def test_a_probe_that_could_not_be_sent_says_nothing() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s - 1) == []
    broker.machine.not_asked(broker.now_s)
    assert broker.run(LIMITS.silent_s - 1) == []


@pytest.mark.parametrize("stopped_s", [5.0, 30.0, 3600.0])
def test_time_in_which_the_process_was_stopped_does_not_count(stopped_s: float) -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s - 1) == []
    assert broker.tick(stopped_s) == []
    assert broker.run(LIMITS.silent_s - 1) == []
    assert broker.tick() == [ASK]


def test_time_in_which_others_had_the_processors_does_not_count() -> None:
    broker = Broker()
    for _ in range(int(2 * LIMITS.silent_s)):
        assert broker.starved_s is not None
        broker.starved_s += 0.5 * LIMITS.tick_s
        assert broker.tick() == []
    assert broker.run(2 * LIMITS.silent_s) == [ASK]


def test_a_little_waiting_for_a_processor_is_usual() -> None:
    broker = Broker()
    effects: list[Effect] = []
    for _ in range(int(LIMITS.silent_s)):
        assert broker.starved_s is not None
        broker.starved_s += 0.1 * LIMITS.tick_s
        effects += broker.tick()
    assert effects == [ASK]


def test_without_the_figures_of_the_kernel_late_ticks_tell() -> None:
    broker = Broker()
    broker.starved_s = None
    assert broker.run(LIMITS.silent_s - 1) == []
    assert broker.tick(30.0) == []
    assert broker.run(LIMITS.silent_s) == [ASK]


@pytest.mark.parametrize("serve", [False, None])
def test_the_only_broker_that_is_known_to_live_is_never_ended(serve: bool | None) -> None:
    broker = Broker()
    for _ in range(5):
        assert broker.run(LIMITS.silent_s) == [ASK]
        assert broker.others_serve(serve, after_s=0.0) == []
    assert broker.run(LIMITS.silent_s) == [ASK]
    assert broker.others_serve(True) == [END]


def test_a_process_does_not_end_itself_in_its_first_ten_minutes() -> None:
    """So it happens at most once in ten minutes, however often the broker is restarted."""
    broker = Broker(age_s=0.0)
    assert broker.run(LIMITS.quiet_s - 1) == []
    assert broker.tick() == [ASK]


def test_a_process_ends_itself_once() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s) == [ASK]
    assert broker.others_serve(True) == [END]
    assert broker.run(10 * LIMITS.silent_s) == []


def test_an_answer_while_the_others_are_asked_counts() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s) == [ASK]
    broker.machine.answered(broker.now_s)
    assert broker.others_serve(True) == []


def test_a_stop_while_the_others_are_asked_counts() -> None:
    broker = Broker()
    assert broker.run(LIMITS.silent_s) == [ASK]
    assert broker.others_serve(True, after_s=30.0) == []


def test_nothing_is_asked_twice_at_a_time() -> None:
    broker = Broker()
    assert broker.run(5 * LIMITS.silent_s) == [ASK]
