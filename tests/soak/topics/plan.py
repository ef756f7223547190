"""The work of the clients of topics in a round, drawn from the seed.

Each round has its own topics.
"""

from random import Random

from tests.simulation.plan import Consume, Follow, Plan, Produce, Shape, Topic, Work

_PLAIN, _PARTITIONS = 3, 2
_MESSAGES = 1_000_000  # enough for the whole round
_HOST = "client"
_TYPES = ("exclusive", "failover", "shared", "shared")


def draw_plan(seed: int, number: int, storm_s: float) -> Plan:
    """Draw topics, producers, consumers of each type and readers for one round."""
    rng = Random(f"{seed}/{number}")
    topics = [Topic(_name(seed, number, index)) for index in range(_PLAIN)]
    topics.append(Topic(_name(seed, number, _PLAIN), _PARTITIONS))
    work = [each for topic in topics for each in _draw_work(rng, topic.name)]
    return Plan(f"{seed}/{number}", Shape(), tuple(topics), tuple(work), (), storm_s=storm_s)


def steady_plan(seed: int, number: int) -> Plan:
    """Plan a round of kills: each topic has one producer and one consumer that never pause."""
    topics = [Topic(_name(seed, number, index)) for index in range(_PLAIN)]
    work: list[Work] = []
    for topic in topics:
        short = topic.name.rpartition("/")[2]
        work += [
            Produce(f"p-{short}", _HOST, topic.name, _MESSAGES, pace_s=0.01, burst=2),
            Consume(f"c-{short}", _HOST, topic.name, "s", linger_s=0.02, queue=1000),
        ]
    return Plan(f"{seed}/{number}", Shape(), tuple(topics), tuple(work), ())


def _name(seed: int, number: int, index: int) -> str:
    return f"persistent://public/default/soak-{seed}-{number}-{index}"


def _draw_work(rng: Random, topic: str) -> list[Work]:
    short = topic.rpartition("/")[2]
    work: list[Work] = [_steady(rng, f"p-{short}", topic)]
    if rng.random() < 0.5:
        work.append(_moody(rng, f"q-{short}", topic))
    for subscription in ("a", "b"):
        kind = rng.choice(_TYPES)
        for member in range(rng.randint(1, 1 if kind == "exclusive" else 2)):
            name = f"{subscription}{member}-{short}"
            work.append(_draw_consumer(rng, name, topic, subscription, kind))
    start = rng.choice(["earliest", "offset", "time"]) if rng.random() < 0.7 else "earliest"
    if topic.endswith(f"-{_PLAIN}"):
        start = "earliest"  # an offset is a place in one partition
    work.append(Follow(f"f-{short}", _HOST, topic, start, again=rng.choice([0.0, 0.02])))
    return work


def _steady(rng: Random, name: str, topic: str) -> Produce:
    return Produce(
        name,
        _HOST,
        topic,
        _MESSAGES,
        pace_s=0.05,
        burst=rng.choice([1, 5, 20]),
        payload_bytes=rng.choice([20, 1000]),
    )


def _moody(rng: Random, name: str, topic: str) -> Produce:
    """Draw a producer that gives sends up, waits for receipts, or closes and reopens."""
    return Produce(
        name,
        _HOST,
        topic,
        _MESSAGES,
        pace_s=0.08,
        burst=rng.choice([1, 5]),
        batching=rng.random() < 0.5,
        payload_bytes=rng.choice([20, 20_000]),
        compression=rng.choice(["none", "lz4"]),
        send_timeout_s=rng.choice([None, 1.0, 5.0]),
        reopen=rng.choice([0.0, 0.05]),
        wait=rng.random() < 0.4,
    )


def _draw_consumer(rng: Random, name: str, topic: str, subscription: str, kind: str) -> Consume:
    def sometimes(odds: float) -> float:
        return odds if rng.random() < 0.3 else 0.0

    return Consume(
        name,
        _HOST,
        topic,
        subscription,
        type=kind,
        start="earliest",
        receipts=rng.random() < 0.7,
        cumulative=sometimes(0.5),
        linger_s=rng.choice([0.01, 0.1]),
        nack=sometimes(0.02),
        forget=sometimes(0.01),
        leave=sometimes(0.01),
        abandon=0.0 if kind == "exclusive" else sometimes(0.5),  # otherwise it stays busy
        seek=sometimes(0.002),
        unsubscribe=sometimes(0.001),
        queue=rng.choice([20, 1000]),
    )
