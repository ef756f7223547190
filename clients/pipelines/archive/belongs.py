"""The check that an archive and a topic belong together.  Pure.

The brokers say when each partition was created, and the id of their cluster.  If they do not say
it, nobody knows if the topic is the archived one: then nothing is read and nothing is written.
"""

# pyright: basic
# (the libraries underneath have no types)

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.manifest import Manifest
from daybook.clients.spark.offsets import is_another_topic
from daybook.clients.spark.topics import Held


def known_instance(held: Held) -> str:
    """Return the id of the cluster.  Raise ArchiveError if the brokers do not tell it."""
    if held.instance is None:
        raise ArchiveError(
            "the brokers do not tell the id of their cluster, so it is unknown to which topic an"
            " archive belongs: ask brokers of this release"
        )
    return held.instance


def known_created(held: Held, number: int) -> int:
    """Return the creation of a partition.  Raise ArchiveError if the brokers do not tell it."""
    for partition, retained in held.partitions.items():
        if partition.number == number and retained.created is not None:
            return retained.created
    raise ArchiveError(
        f"the brokers do not tell when partition {number} was created, so it is unknown if it is"
        " the archived one: ask brokers of this release"
    )


def is_partitioned(held: Held) -> bool:
    """Return False for a topic that is its own partition 0."""
    return any(stored != partition.topic for partition, stored in held.stored_in.items())


def check_belongs(manifest: Manifest, held: Held, directory: str, remedy: str) -> None:
    """Raise ArchiveError, with the remedy, unless the topic is the archived one.

    The manifest was read before the brokers were asked, so the topic does not end before the
    archive.
    """
    topics = {partition.topic for partition in held.partitions}
    if topics - {manifest.topic}:
        raise ArchiveError(
            f"{directory} is the archive of {manifest.topic}, and not of {min(topics)}: {remedy}"
        )
    instance = known_instance(held)
    if manifest.instance != instance:
        raise ArchiveError(
            f"{directory} is an archive of the cluster instance {manifest.instance}, and these"
            f" brokers belong to {instance}: correct the service URL, or {remedy}"
        )
    gone = set(manifest.partitions) - {partition.number for partition in held.partitions}
    if gone or manifest.partitioned != is_partitioned(held):
        raise ArchiveError(
            f"{manifest.topic} does not have the partitions {sorted(manifest.partitions)} of"
            f" {directory} any more, because it was deleted: {remedy}"
        )
    for partition, retained in sorted(held.partitions.items()):
        archived = manifest.partitions.get(partition.number)
        if archived is None:
            continue
        if is_another_topic(archived.created, known_created(held, partition.number)):
            raise ArchiveError(
                f"{partition} was deleted and created again, and {directory} has the old one:"
                f" {remedy}"
            )
        if archived.end > retained.next:
            raise ArchiveError(
                f"{partition} ends at offset {retained.next}, and {directory} has it up to offset"
                f" {archived.end}: the topic has lost messages, or was restored from an old copy:"
                f" {remedy}"
            )
