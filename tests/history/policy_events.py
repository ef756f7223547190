"""The events of policies that acknowledge messages, and delete subscriptions or topics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MayExpire:
    """From now on, brokers may acknowledge messages that are older than `age_s`."""

    topic: str
    age_s: float
    subscription: str = ""  # empty: of all subscriptions


@dataclass(frozen=True, slots=True)
class Expired:
    """The expiry of `MayExpire` was carried out, and does not happen again."""

    topic: str
    age_s: float
    subscription: str


@dataclass(frozen=True, slots=True)
class MayEvict:
    """From now on, brokers may acknowledge messages that have so many bytes behind them."""

    topic: str
    bytes_behind: int
