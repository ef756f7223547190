"""Queries about topics that a client has not opened: where they are, which there are, schemas."""

from contextlib import suppress

from google.protobuf.message import Message

from daybook.broker.context import BrokerContext
from daybook.broker.errors import (
    InvalidNameError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)
from daybook.broker.namespaces.topic_lists import matching, without_system
from daybook.broker.protocol.patterns import PatternError, TopicPattern
from daybook.broker.protocol.topic_watchers import topics_hash
from daybook.broker.schemas.admission import UNVERSIONED, typed
from daybook.broker.service.command_bodies import topic_name
from daybook.wire.errors import MalformedError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName, check_namespace


class TopicQueries:
    """One instance per connection.  `encrypted`: the client has TLS, and is told no other URL."""

    def __init__(self, broker: BrokerContext, *, encrypted: bool) -> None:
        self._broker = broker
        self._encrypted = encrypted

    async def lookup(self, body: pb.CommandLookupTopic) -> Message:
        name = topic_name(body.topic)
        if body.advertised_listener_name.strip():
            listener = body.advertised_listener_name.strip()
            raise UnavailableError(f"the broker do not have {listener} listener")
        found = await self._broker.lookups.lookup(name, authoritative=body.authoritative)
        urls = found.urls(encrypted=self._encrypted)
        answer = pb.CommandLookupTopicResponse(
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            authoritative=found.authoritative,
        )
        if found.redirect:
            answer.response = pb.CommandLookupTopicResponse.Redirect
        if urls.service:
            answer.brokerServiceUrl = urls.service
        if urls.service_tls:
            answer.brokerServiceUrlTls = urls.service_tls
        return answer

    async def partitioned_metadata(self, body: pb.CommandPartitionedTopicMetadata) -> Message:
        broker, name = self._broker, topic_name(body.topic)
        partitions = await broker.policies.partitions(name)
        if not partitions:
            await broker.policies.namespace(name.namespace)
            create = body.metadata_auto_creation_enabled and await self.may_create(name)
            if create:
                partitions = await broker.topics.create_partitions(name)
            elif not await broker.topics.exists(name):
                raise NotFoundError(f"the topic {name} does not exist")
        return pb.CommandPartitionedTopicMetadataResponse(
            request_id=body.request_id,
            partitions=partitions,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )

    async def topics_of_namespace(self, body: pb.CommandGetTopicsOfNamespace) -> Message:
        broker = self._broker
        try:
            namespace = check_namespace(body.namespace)
        except MalformedError as error:
            raise InvalidNameError(str(error)) from None
        names: list[str] = []
        # A missing namespace has no topics.  Go's client would repeat an error for 30 s.
        with suppress(NotFoundError):
            await broker.policies.namespace(namespace)
            if body.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
                names += await broker.topics.names_in(namespace)
            if body.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
                names += await broker.topics.non_persistent_names_in(namespace)
        names = await without_system(names)
        filtered = False
        # An expression that is not evaluated here is applied by the client, as older ones do.
        if body.topics_pattern:
            with suppress(PatternError):
                names = sorted(await matching(names, TopicPattern(body.topics_pattern)))
                filtered = True
        answer = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=body.request_id, topics_hash=topics_hash(names), filtered=filtered
        )
        if answer.topics_hash == body.topics_hash:
            answer.changed = False
        else:
            answer.topics.extend(names)
        if answer.ByteSize() > broker.config.max_message_size:
            raise NotAllowedError(
                f"{namespace} has {len(names)} topics that match, whose names take"
                f" {answer.ByteSize()} bytes, and an answer has at most"
                f" {broker.config.max_message_size}: subscribe with a regular expression that fewer"
                " match and that this broker applies, or read the list in pages over REST"
                " (?after=NAME&limit=N)"
            )
        return answer

    async def get_or_create_schema(self, body: pb.CommandGetOrCreateSchema) -> Message:
        answer = pb.CommandGetOrCreateSchemaResponse(request_id=body.request_id)
        answer.schema_version = UNVERSIONED
        if typed(body.schema) is not None:
            # A client that is told to look the topic up again would repeat this forever.
            topic = await self._broker.topics.get(topic_name(body.topic), create=False)
            answer.schema_version = await self._broker.schemas.producer(topic, body.schema)
        return answer

    async def may_create(self, name: TopicName) -> bool:
        """Return True if a client that opens the topic creates it."""
        policies = await self._broker.policies.effective_in(name.namespace)
        return policies.auto_topic_creation.allow_auto_topic_creation
