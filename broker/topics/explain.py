"""Say in words what a topic is doing at its broker: loaded, being loaded or closed, or at rest."""

import msgspec

from daybook.broker.protocol.topics import TopicState
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.topics import TopicName


class TopicExplanation(msgspec.Struct, rename="camel"):
    """The state of a topic, and the broker that answers for it, which owns its bundle.

    `step` is empty, and the times are absent, unless the topic is being loaded.
    """

    topic: str
    state: str  # notLoaded, loading, loaded or closing
    summary: str
    step: str = ""
    step_s: float | None = None
    total_s: float | None = None
    broker: str = ""


def explain(topics: Topics, name: TopicName, *, waiting: int = 0) -> TopicExplanation:
    """Return what the topic is doing.  The question does not load it.

    `waiting` requests of clients wait for their turn at this broker.
    """
    found = topics.load_progress(name)
    if found is not None:
        summary = f"The topic is being loaded, and is {found.step}."
        step_s, total_s = round(found.step_s, 1), round(found.total_s, 1)
        return TopicExplanation(name.full, "loading", summary, found.step, step_s, total_s)
    match topics.state_of(name):
        case None:
            return TopicExplanation(name.full, "notLoaded", _not_loaded(waiting))
        case TopicState.LOADING:  # The task of the load has not run yet, or has just ended.
            return TopicExplanation(name.full, "loading", "The topic is being loaded.")
        case TopicState.LOADED:
            return TopicExplanation(name.full, "loaded", _served(topics.loaded.get(name.full)))
        case TopicState.UNLOADING:
            summary = "The topic is being closed. Clients look it up again."
            return TopicExplanation(name.full, "closing", summary)


def _not_loaded(waiting: int) -> str:
    """Say only what the broker knows: a client may be on its way, or wait before a retry."""
    summary = (
        "No broker has the topic in memory now. The broker that owns its bundle loads it for the"
        " first client that reaches it: a client that waits for the topic has not reached that"
        " broker yet, or tries again after an error."
    )
    if not waiting:
        return summary
    requests = "request of clients waits" if waiting == 1 else "requests of clients wait"
    return f"{summary} {waiting:,} {requests} for a turn there, for this topic or for others."


def _served(topic: Topic | None) -> str:
    """Say that a topic is served, and why it stores no messages if that is so."""
    if topic is None:
        return "The topic is served."
    if topic.terminated:
        return "The topic is served and takes no messages, because it is terminated."
    if topic.log.full:
        return f"The topic is served and takes no messages: {topic.log.full}"
    if topic.log.waiting_for:
        return f"The topic is served, and messages wait to be stored: {topic.log.waiting_for}."
    return "The topic is served."
