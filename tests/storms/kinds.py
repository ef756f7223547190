"""The kinds of storms, and how many of a thousand schedules are of which."""

from tests.storms.chain import ChainStorm
from tests.storms.cursor import CursorStorm
from tests.storms.dispatch import DispatchStorm
from tests.storms.ledger import LedgerStorm
from tests.storms.ledger_deferred import DeferredStorm
from tests.storms.ownership import OwnershipStorm
from tests.storms.producer import ProducerStorm
from tests.storms.storm import Storm

KINDS: dict[str, type[Storm]] = {
    storm.kind: storm
    for storm in (
        LedgerStorm,
        DeferredStorm,
        ChainStorm,
        CursorStorm,
        DispatchStorm,
        ProducerStorm,
        OwnershipStorm,
    )
}
SHARES = {
    "ledger": 340,
    "deferred": 60,
    "chain": 170,
    "cursor": 170,
    "dispatch": 150,
    "producer": 100,
    "ownership": 10,
}
