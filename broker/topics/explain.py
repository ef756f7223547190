"""Say in words what a topic is doing at its broker: loaded, being loaded or closed, or at rest."""

import msgspec

from daybook.broker.protocol.topics import TopicState
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.topics import TopicName


class TopicExplanation(msgspec.Struct, rename="camel"):
    """The state of a topic.  `step` is empty unless the topic is being loaded."""

    topic: str
    state: str  # notLoaded, loading, loaded or closing
    summary: str
    step: str = ""
    step_s: float = 0.0
    total_s: float = 0.0


def explain(topics: Topics, name: TopicName) -> TopicExplanation:
    """Return what the topic is doing.  The question does not load it."""
    found = topics.load_progress(name)
    if found is not None:
        summary = f"The topic is being loaded, and is {found.step}."
        step_s, total_s = round(found.step_s, 1), round(found.total_s, 1)
        return TopicExplanation(name.full, "loading", summary, found.step, step_s, total_s)
    match topics.state_of(name):
        case None | TopicState.LOADING:
            summary = "The topic is not in memory, because nobody uses it. Its next use loads it."
            return TopicExplanation(name.full, "notLoaded", summary)
        case TopicState.LOADED:
            return TopicExplanation(name.full, "loaded", _served(topics.loaded.get(name.full)))
        case TopicState.UNLOADING:
            summary = "The topic is being closed. Clients look it up again."
            return TopicExplanation(name.full, "closing", summary)


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
