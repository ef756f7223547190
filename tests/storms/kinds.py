"""The kinds of storms, and the share of each in a thousand schedules.

A walk takes twenty times as long as another storm and checks more in each step, so there are fewer.
"""

from tests.storms.chain import ChainStorm
from tests.storms.cursor import CursorStorm
from tests.storms.dispatch import DispatchStorm
from tests.storms.key_shared import KeySharedStorm
from tests.storms.ledger import LedgerStorm
from tests.storms.ledger_deferred import DeferredStorm
from tests.storms.models import MODELS
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
        KeySharedStorm,
        ProducerStorm,
        OwnershipStorm,
    )
}
# The models of single dispatchers run when they are asked for: `dispatch` mixes them.
ALL_KINDS = {**KINDS, **MODELS}
SHARES = {
    "ledger": 40,
    "deferred": 240,
    "chain": 10,
    "cursor": 350,
    "dispatch": 125,
    "key_shared": 100,
    "producer": 120,
    "ownership": 15,
}
