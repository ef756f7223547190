"""A broker whose service port accepts clients and answers none, as `python -m broker` otherwise."""

import sys

import trio

from broker import server
from broker.__main__ import main
from broker.context import BrokerContext
from wire.transport import Stream


async def answer_nobody(_stream: Stream, _broker: BrokerContext) -> None:
    await trio.sleep_forever()


if __name__ == "__main__":
    vars(server)["serve_client"] = answer_nobody
    sys.exit(main())
