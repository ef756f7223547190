"""When a subscription counts as stalled."""

from daybook.broker.protocol.dispatch.stall import StallWatch


def test_one_that_waits_and_sends_nothing_is_stalled_after_the_time() -> None:
    watch = StallWatch()
    assert watch.sample(10.0, waits=True, sent=3) == 0.0
    assert watch.sample(14.0, waits=True, sent=3) == 4.0
    assert not watch.stalls(5.0, 14.0)
    assert watch.sample(15.0, waits=True, sent=3) == 5.0
    assert watch.stalls(5.0, 15.0)


def test_a_delivery_restarts_the_time() -> None:
    watch = StallWatch()
    watch.sample(10.0, waits=True, sent=3)
    assert watch.sample(14.0, waits=True, sent=4) == 0.0
    assert watch.sample(18.0, waits=True, sent=4) == 4.0


def test_silence_before_the_first_message_does_not_count() -> None:
    watch = StallWatch()
    for now_s in (0.0, 100.0, 200.0):
        assert watch.sample(now_s, waits=False, sent=7) is None
    assert watch.sample(300.0, waits=True, sent=7) == 0.0
    assert not watch.stalls(5.0, 300.0)


def test_one_that_need_not_wait_any_more_is_not_stalled() -> None:
    watch = StallWatch()
    watch.sample(0.0, waits=True, sent=0)
    assert watch.sample(9.0, waits=True, sent=0) == 9.0
    assert watch.sample(10.0, waits=False, sent=0) is None
    assert not watch.stalls(5.0, 10.0)


def test_each_stall_is_told_once() -> None:
    watch = StallWatch()
    watch.sample(0.0, waits=True, sent=0)
    assert [watch.first_told(), watch.first_told()] == [True, False]
    watch.sample(1.0, waits=True, sent=1)
    assert watch.first_told()
