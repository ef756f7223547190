"""The lines about bookies that a broker does not use because they failed."""

import structlog
import trio
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.bookie.ledger.ensemble import Quarantined, Released
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.broker.quarantine_log import QuarantineLog
from daybook.wire.logging import LIMITER_INTERVAL_S

B1, B2 = BookieId("b1:3181"), BookieId("b2:3181")


async def test_a_bookie_that_comes_and_goes_has_few_lines_and_the_last_one_is_true(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lines = CapturingLogger()
    log = QuarantineLog(structlog.wrap_logger(lines, processors=[]), nursery)
    for _ in range(50):
        log.note(Quarantined(B1, "reset"))
        log.note(Released(B1, 1.0))
    log.note(Quarantined(B1, "it did not answer in time"))
    log.note(Quarantined(B2, "refused"))
    assert [line.kwargs["bookie"] for line in lines.calls] == [B1] * 4 + [B2]
    assert lines.calls[0].kwargs["why"] == "reset"
    assert lines.calls[1].kwargs["after_s"] == 1.0
    await trio.sleep(LIMITER_INTERVAL_S + 1)
    last = lines.calls[-1]
    assert last.method_name == "warning"
    assert last.kwargs["bookie"] == B1
    assert last.kwargs["why"] == "it did not answer in time"
    assert last.kwargs["not_logged"] == 96
    log.note(Released(B1, 60.0))
    assert lines.calls[-1].method_name == "info"
    await trio.sleep(10 * LIMITER_INTERVAL_S)
    assert len(lines.calls) == 7
    nursery.cancel_scope.cancel()
