"""What applications name by text, checked: ValueError if there is nothing of that name."""

from wire.compression import CompressionType
from wire.errors import MalformedError
from wire.topics import TopicName


def topic_name(topic: str) -> TopicName:
    """The name of a topic; raises ValueError."""
    try:
        return TopicName.parse(topic)
    except MalformedError as error:
        raise ValueError(str(error)) from None


def compression_type(name: str) -> CompressionType:
    try:
        return CompressionType[name.upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in CompressionType)
        raise ValueError(f"compression is one of {names}, not {name!r}") from None
