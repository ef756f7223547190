"""A stored entry of the admin REST: one message, a batch, and what cannot be split."""

from daybook.clients.python.message_id import MessageId
from daybook.clients.python.stored_entry import StoredEntry, StoredMessage
from daybook.wire.batch import encode_batch
from daybook.wire.proto import pulsar_pb2 as pb

HEAD = {"x-pulsar-message-id": "3:4", "x-pulsar-producer-name": "p", "content-length": "9"}


def test_one_message_has_its_key_and_properties() -> None:
    more = {"x-pulsar-property-team": "a", "x-pulsar-partition-key": "k"}
    entry = StoredEntry.of({**HEAD, **more}, b"data")
    assert entry.message_id == "3:4"
    assert entry.messages == (StoredMessage(b"data", "k", {"team": "a"}, MessageId(3, 4)),)
    assert entry.metadata == {"producer-name": "p", "partition-key": "k"}


def test_properties_keep_their_case_if_the_broker_sends_them_at_once() -> None:
    more = {"x-pulsar-property-team": "a", "x-pulsar-property": '{"Team": "\\u00e4"}'}
    (message,) = StoredEntry.of({**HEAD, **more}, b"data").messages
    assert message.properties == {"Team": "\u00e4"}
    more["x-pulsar-property"] = "[1"
    (message,) = StoredEntry.of({**HEAD, **more}, b"data").messages
    assert message.properties == {"team": "a"}


def test_a_batch_is_split() -> None:
    single = pb.SingleMessageMetadata(partition_key="k")
    single.properties.add(key="n", value="1")
    singles = [(pb.SingleMessageMetadata(), b"one"), (single, b"two")]
    for meta, data in singles:
        meta.payload_size = len(data)
    entry = StoredEntry.of({**HEAD, "x-pulsar-num-batch-message": "2"}, encode_batch(singles))
    assert [(m.data, m.key, dict(m.properties)) for m in entry.messages] == [
        (b"one", None, {}),
        (b"two", "k", {"n": "1"}),
    ]


def test_each_message_of_a_batch_has_an_id_and_an_offset() -> None:
    singles = [(pb.SingleMessageMetadata(payload_size=1), b"%d" % n) for n in range(3)]
    more = {
        "x-pulsar-num-batch-message": "3",
        "x-pulsar-broker-entry-metadata-index": "12",
        "x-daybook-pending": "Bg==",  # the bits 1 and 2
    }
    entry = StoredEntry.of({**HEAD, **more}, encode_batch(singles), 5)
    assert [str(m.message_id) for m in entry.messages] == ["3:4:5:0", "3:4:5:1", "3:4:5:2"]
    assert [m.offset for m in entry.messages] == [10, 11, 12]
    assert [m.acknowledged for m in entry.messages] == [True, False, False]
    more["x-pulsar-is-encrypted"] = "true"
    (message,) = StoredEntry.of({**HEAD, **more}, b"secret").messages
    assert (str(message.message_id), message.offset) == ("3:4:-1", 10)


def test_what_cannot_be_split_is_one_message() -> None:
    for more in ({"x-pulsar-is-encrypted": "true"}, {}):
        headers = {**HEAD, "x-pulsar-num-batch-message": "2", **more}
        entry = StoredEntry.of(headers, b"\0\0")
        assert [m.data for m in entry.messages] == [b"\0\0"]
