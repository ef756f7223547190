"""A broker whose service port accepts clients and answers none; otherwise it is a usual broker."""

import sys

import trio

from daybook.broker import parts
from daybook.broker.__main__ import main
from daybook.broker.context import BrokerContext
from daybook.broker.service.accept import Prove
from daybook.wire.transport import Stream


async def answer_nobody(_stream: Stream, _broker: BrokerContext, _prove: Prove) -> None:
    await trio.sleep_forever()


if __name__ == "__main__":
    vars(parts)["serve_client"] = answer_nobody
    sys.exit(main())
