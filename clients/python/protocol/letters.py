"""The names and properties of retry and dead letter topics, which are those of Pulsar's clients.

A message that could not be processed is sent to another topic, with properties that tell its
origin.  The first such step sets REAL_TOPIC and ORIGIN_MESSAGE_ID, and later ones keep them.  A
retry also counts, in RECONSUMETIMES.
"""

from collections.abc import Mapping
from dataclasses import dataclass

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
RETRIES_MAX = 16  # the limit of a consumer that has retries and no policy
_DEAD, _RETRY = "-DLQ", "-RETRY"


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a consumer gives a message up, and where it sends such a message.

    `max_redeliveries`: the broker delivers a message once, and again so often.  After that a
        rejected message is sent to the dead letter topic.
    `topic`: the dead letter topic; by default TOPIC-SUBSCRIPTION-DLQ.
    `retry_topic`: the topic of `reconsume_later`; by default TOPIC-SUBSCRIPTION-RETRY.
    `initial_subscription`: a subscription that is created with the dead letter topic, so that its
        messages are kept until somebody reads them.
    """

    max_redeliveries: int
    topic: str | None = None
    retry_topic: str | None = None
    initial_subscription: str | None = None

    def __post_init__(self) -> None:
        if self.max_redeliveries < 0:
            raise ValueError(f"max_redeliveries must not be negative: {self.max_redeliveries}")

    def dead_letter_topic(self, topic: str, subscription: str) -> str:
        """Return the dead letter topic of a subscription of this topic."""
        return self.topic or f"{topic}-{subscription}{_DEAD}"

    def retry_letter_topic(self, topic: str, subscription: str) -> str:
        """Return the retry topic of a subscription of this topic."""
        return self.retry_topic or f"{topic}-{subscription}{_RETRY}"

    def is_last(self, redeliveries: int) -> bool:
        """Return True if the message is not to be delivered again."""
        return redeliveries >= self.max_redeliveries

    def is_over(self, redeliveries: int) -> bool:
        """Return True if the message came more often than the application wants it."""
        return redeliveries > self.max_redeliveries


def origin(properties: Mapping[str, str], topic: str, message_id: str) -> dict[str, str]:
    """Return the properties of a message with those that tell its origin."""
    return {REAL_TOPIC: topic, ORIGIN_MESSAGE_ID: message_id, **properties}


def retries(properties: Mapping[str, str]) -> int:
    """Return how often `reconsume_later` was called for a message before."""
    text = properties.get(RECONSUMETIMES, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def retry(properties: Mapping[str, str], delay_s: float) -> dict[str, str]:
    """Return the properties of the next retry of a message, which has those of its origin."""
    return {
        **properties,
        RECONSUMETIMES: str(retries(properties) + 1),
        DELAY_TIME: str(round(max(0.0, delay_s) * 1000)),
    }
