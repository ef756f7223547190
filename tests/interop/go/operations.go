// One operation after the other, each with topics of its own.  A line for each says "NAME: ok", or
// what went wrong.  `docs/interop.md` has a table of the operations.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

const soon = 20 * time.Second

type operations struct {
	client pulsar.Client
	admin  string
}

func runOperations(client pulsar.Client, admin string) {
	o := &operations{client, admin}
	o.producers()
	o.messages()
	o.schemas()
	o.subscriptions()
	o.acknowledgements()
	o.places()
	o.others()
	say("done")
}

func (o *operations) run(name string, work func(topic string) error) {
	local := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, name)
	if err := work("persistent://public/default/go-" + local); err != nil {
		say("%s: %s", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	say("%s: ok", name)
}

func (o *operations) producers() {
	o.run("access mode shared", func(topic string) error {
		for range 2 {
			producer, err := o.producer(topic, nil)
			if err != nil {
				return err
			}
			if _, err = o.send(producer, "x"); err != nil {
				return err
			}
		}
		return nil
	})
	o.run("access mode exclusive", func(topic string) error {
		exclusive := func(options *pulsar.ProducerOptions) {
			options.ProducerAccessMode = pulsar.ProducerAccessModeExclusive
			options.MaxReconnectToBroker = new(uint)
		}
		one, err := o.producer(topic, exclusive)
		if err != nil {
			return err
		}
		if _, err := o.producer(topic, exclusive); err == nil {
			return errors.New("a second producer was admitted")
		}
		one.Close()
		_, err = o.producer(topic, exclusive)
		return err
	})
	o.run("access mode wait for exclusive", func(topic string) error {
		one, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
			options.ProducerAccessMode = pulsar.ProducerAccessModeExclusive
		})
		if err != nil {
			return err
		}
		ready := make(chan error, 1)
		go func() {
			_, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
				options.ProducerAccessMode = pulsar.ProducerAccessModeWaitForExclusive
			})
			ready <- err
		}()
		select {
		case <-ready:
			return errors.New("the second producer did not wait")
		case <-time.After(200 * time.Millisecond):
		}
		one.Close()
		select {
		case err := <-ready:
			return err
		case <-time.After(soon):
			return errors.New("the second producer waits")
		}
	})
	o.run("batching", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		if err := o.sendBatch(topic, 10, nil); err != nil {
			return err
		}
		entries := map[int64]bool{}
		for number := range 10 {
			message, err := next(consumer, fmt.Sprint(number))
			if err != nil {
				return err
			}
			entries[message.ID().EntryID()] = true
		}
		return wanted(len(entries) == 1, "%d entries", len(entries))
	})
	o.run("batching by key", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		err = o.sendBatch(topic, 10, func(options *pulsar.ProducerOptions) {
			options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
		})
		if err != nil {
			return err
		}
		keys := map[int64]string{}
		for range 10 {
			message, err := receive(consumer)
			if err != nil {
				return err
			}
			entry := message.ID().EntryID()
			if found, ok := keys[entry]; ok && found != message.Key() {
				return errors.New("two keys in an entry")
			}
			keys[entry] = message.Key()
		}
		return wanted(len(keys) == 2, "%d entries", len(keys))
	})
	o.run("chunking", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
			options.EnableChunking = true
			options.DisableBatching = true
		})
		if err != nil {
			return err
		}
		large := make([]byte, 12<<20)
		_, _ = rand.Read(large)
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: large})
		if err != nil {
			return err
		}
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		return wanted(bytes.Equal(message.Payload(), large), "the message has changed")
	})
	o.run("largest message", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, alone)
		if err != nil {
			return err
		}
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: make([]byte, 5<<20-1024),
		})
		if err != nil {
			return err
		}
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: make([]byte, 5<<20+1),
		})
		if err == nil {
			return errors.New("a larger one was sent")
		}
		_, err = receive(consumer)
		return err
	})
	for name, kind := range map[string]pulsar.CompressionType{
		"lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
	} {
		o.run("compression "+name, func(topic string) error {
			text := strings.Repeat("x", 10000)
			return o.roundTrip(topic, text, func(options *pulsar.ProducerOptions) {
				options.CompressionType = kind
			}, nil)
		})
	}
	o.run("encryption", func(topic string) error {
		keys, err := newKeys()
		if err != nil {
			return err
		}
		return o.roundTrip(topic, "secret", func(options *pulsar.ProducerOptions) {
			options.Encryption = &pulsar.ProducerEncryptionInfo{
				KeyReader: keys, Keys: []string{"key"},
			}
		}, func(options *pulsar.ConsumerOptions) {
			options.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: keys}
		})
	})
	o.run("partitioned producer", func(topic string) error {
		if err := o.ask("PUT", topic, "partitions", "3"); err != nil {
			return err
		}
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, alone)
		if err != nil {
			return err
		}
		for number := range 6 {
			if _, err := o.send(producer, fmt.Sprint(number)); err != nil {
				return err
			}
		}
		names := map[string]bool{}
		for range 6 {
			message, err := receive(consumer)
			if err != nil {
				return err
			}
			names[message.Topic()] = true
		}
		return wanted(len(names) == 3, "%d partitions", len(names))
	})
	o.run("message router", func(topic string) error {
		if err := o.ask("PUT", topic, "partitions", "3"); err != nil {
			return err
		}
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
			options.MessageRouter = func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int { return 2 }
		})
		if err != nil {
			return err
		}
		if _, err := o.send(producer, "x"); err != nil {
			return err
		}
		message, err := next(consumer, "x")
		if err != nil {
			return err
		}
		return wanted(strings.HasSuffix(message.Topic(), "-partition-2"), "%s", message.Topic())
	})
}

func (o *operations) messages() {
	o.run("properties, key and event time", func(topic string) error {
		at := time.UnixMilli(77)
		message, err := o.trip(topic, &pulsar.ProducerMessage{
			Payload: []byte("x"), Key: "k", Properties: map[string]string{"a": "b"}, EventTime: at,
		}, nil)
		if err != nil {
			return err
		}
		good := message.Key() == "k" && message.Properties()["a"] == "b" &&
			message.EventTime().Equal(at)
		return wanted(good, "%v", message)
	})
	o.run("ordering key", func(topic string) error {
		message, err := o.trip(topic, &pulsar.ProducerMessage{
			Payload: []byte("x"), OrderingKey: "o",
		}, nil)
		if err != nil {
			return err
		}
		return wanted(message.OrderingKey() == "o", "%s", message.OrderingKey())
	})
	o.run("message without value", func(topic string) error {
		message, err := o.trip(topic, &pulsar.ProducerMessage{Key: "k"}, nil)
		if err != nil {
			return err
		}
		return wanted(len(message.Payload()) == 0, "%s", message.Payload())
	})
	o.run("delayed delivery", func(topic string) error {
		consumer, err := o.consumer(topic, shared)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, alone)
		if err != nil {
			return err
		}
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte("late"), DeliverAfter: 1500 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		if _, err := o.send(producer, "now"); err != nil {
			return err
		}
		return each(consumer, "now", "late")
	})
}

func (o *operations) subscriptions() {
	o.run("exclusive", func(topic string) error {
		if _, err := o.consumer(topic, nil); err != nil {
			return err
		}
		_, err := o.consumer(topic, nil)
		return wanted(err != nil, "a second consumer was admitted")
	})
	o.run("shared", func(topic string) error {
		one, err := o.consumer(topic, oneShared)
		if err != nil {
			return err
		}
		two, err := o.consumer(topic, oneShared)
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 10); err != nil {
			return err
		}
		if _, err := receive(one); err != nil {
			return err
		}
		_, err = receive(two)
		return err
	})
	o.run("several topics", func(topic string) error {
		consumer, err := o.client.Subscribe(pulsar.ConsumerOptions{
			Topics: []string{topic + "1", topic + "2"}, SubscriptionName: "s",
		})
		if err != nil {
			return err
		}
		for _, name := range []string{"1", "2"} {
			producer, err := o.producer(topic+name, nil)
			if err != nil {
				return err
			}
			if _, err := o.send(producer, name); err != nil {
				return err
			}
			if _, err := next(consumer, name); err != nil {
				return err
			}
		}
		return nil
	})
	o.run("pattern of topics", func(topic string) error {
		producer, err := o.producer(topic+"1", nil)
		if err != nil {
			return err
		}
		consumer, err := o.client.Subscribe(pulsar.ConsumerOptions{
			TopicsPattern: topic + ".*", SubscriptionName: "s", AutoDiscoveryPeriod: time.Second,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		if err != nil {
			return err
		}
		if _, err := o.send(producer, "1"); err != nil {
			return err
		}
		if _, err := next(consumer, "1"); err != nil {
			return err
		}
		late, err := o.producer(topic+"2", nil)
		if err != nil {
			return err
		}
		if _, err := o.send(late, "2"); err != nil {
			return err
		}
		_, err = next(consumer, "2")
		return err
	})
	o.run("initial position", func(topic string) error {
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		early, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		if _, err := next(early, "0"); err != nil {
			return err
		}
		late, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.SubscriptionName = "late"
			options.SubscriptionInitialPosition = pulsar.SubscriptionPositionLatest
		})
		if err != nil {
			return err
		}
		return nothing(late)
	})
	o.run("subscription properties", func(topic string) error {
		_, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.SubscriptionProperties = map[string]string{"team": "billing"}
		})
		if err != nil {
			return err
		}
		found, err := o.get(topic, "subscription/s/properties")
		if err != nil {
			return err
		}
		return wanted(strings.Contains(found, `"team":"billing"`), "%s", found)
	})
	o.run("non-persistent topics", func(topic string) error {
		topic = "non-" + topic
		producer, err := o.producer(topic, alone)
		if err != nil {
			return err
		}
		for _, text := range []string{"one", "two"} {
			consumer, err := o.consumer(topic, nil)
			if err != nil {
				return err
			}
			if err := o.sendUntilItComes(producer, consumer, text); err != nil {
				return err
			}
			consumer.Close()
			if _, err := o.send(producer, "lost"); err != nil {
				return err
			}
		}
		return nil
	})
	o.run("subscription without a cursor", func(topic string) error {
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.SubscriptionMode = pulsar.NonDurable
		})
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		_, err = next(consumer, "0")
		consumer.Close()
		return err
	})
	o.run("unsubscribe", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		if err := consumer.Unsubscribe(); err != nil {
			return err
		}
		found, err := o.get(topic, "subscriptions")
		if err != nil {
			return err
		}
		return wanted(found == "[]", "%s", found)
	})
	o.run("unsubscribe by force", func(topic string) error {
		one, err := o.consumer(topic, shared)
		if err != nil {
			return err
		}
		if _, err := o.consumer(topic, shared); err != nil {
			return err
		}
		if one.Unsubscribe() == nil {
			return errors.New("a subscription in use was deleted")
		}
		return one.UnsubscribeForce()
	})
	o.run("message listener", func(topic string) error {
		messages := make(chan pulsar.ConsumerMessage, 10)
		_, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.MessageChannel = messages
		})
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		select {
		case message := <-messages:
			return wanted(string(message.Payload()) == "0", "%s", message.Payload())
		case <-time.After(soon):
			return errors.New("nothing comes")
		}
	})
	o.run("interceptors", func(topic string) error {
		counting := &interceptor{}
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.Interceptors = pulsar.ConsumerInterceptors{counting}
		})
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 2); err != nil {
			return err
		}
		if err := each(consumer, "0", "1"); err != nil {
			return err
		}
		return wanted(counting.seen == 2, "%d", counting.seen)
	})
}

type interceptor struct{ seen int }

func (i *interceptor) BeforeConsume(pulsar.ConsumerMessage)                   { i.seen++ }
func (i *interceptor) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (i *interceptor) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

func (o *operations) acknowledgements() {
	again := func(topic string, options func(*pulsar.ConsumerOptions), old pulsar.Consumer,
		contents ...string) error {
		old.Close()
		consumer, err := o.consumer(topic, options)
		if err != nil {
			return err
		}
		return each(consumer, contents...)
	}
	o.run("individual acknowledgement", func(topic string) error {
		consumer, messages, err := o.three(topic, nil)
		if err != nil {
			return err
		}
		if err := consumer.Ack(messages[1]); err != nil {
			return err
		}
		return again(topic, nil, consumer, "0", "2")
	})
	o.run("cumulative acknowledgement", func(topic string) error {
		consumer, messages, err := o.three(topic, nil)
		if err != nil {
			return err
		}
		if err := consumer.AckCumulative(messages[1]); err != nil {
			return err
		}
		return again(topic, nil, consumer, "2")
	})
	o.run("acknowledgement with receipt", func(topic string) error {
		consumer, messages, err := o.three(topic, func(options *pulsar.ConsumerOptions) {
			options.AckWithResponse = true
		})
		if err != nil {
			return err
		}
		return consumer.Ack(messages[0])
	})
	o.run("batch-index acknowledgement", func(topic string) error {
		options := func(options *pulsar.ConsumerOptions) {
			options.EnableBatchIndexAcknowledgment = true
		}
		consumer, err := o.consumer(topic, options)
		if err != nil {
			return err
		}
		if err := o.sendBatch(topic, 4, nil); err != nil {
			return err
		}
		for number := range 4 {
			message, err := next(consumer, fmt.Sprint(number))
			if err != nil {
				return err
			}
			if number%2 == 0 {
				if err := consumer.Ack(message); err != nil {
					return err
				}
			}
		}
		return again(topic, options, consumer, "1", "3")
	})
	o.run("transactions are refused", func(string) error {
		client, err := pulsar.NewClient(pulsar.ClientOptions{
			URL: os.Args[2], EnableTransaction: true, OperationTimeout: 5 * time.Second,
		})
		if err == nil {
			_, err = client.NewTransaction(time.Second)
		}
		return wanted(err != nil, "a transaction has begun")
	})
	o.run("negative acknowledgement", func(topic string) error {
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.Type = pulsar.Shared
			options.NackRedeliveryDelay = 50 * time.Millisecond
		})
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		message, err := next(consumer, "0")
		if err != nil {
			return err
		}
		consumer.Nack(message)
		message, err = next(consumer, "0")
		if err != nil {
			return err
		}
		return wanted(message.RedeliveryCount() == 1, "%d times", message.RedeliveryCount())
	})
	o.run("dead letters", func(topic string) error {
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.Type = pulsar.Shared
			options.NackRedeliveryDelay = 50 * time.Millisecond
			options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-letters"}
		})
		if err != nil {
			return err
		}
		letters, err := o.consumer(topic+"-letters", nil)
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		for range 2 {
			message, err := next(consumer, "0")
			if err != nil {
				return err
			}
			consumer.Nack(message)
		}
		go func() { _, _ = receive(consumer) }() // It sends the letter when the message comes again.
		_, err = next(letters, "0")
		return err
	})
	o.run("retries", func(topic string) error {
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.Type = pulsar.Shared
			options.RetryEnable = true
			options.DLQ = &pulsar.DLQPolicy{
				MaxDeliveries: 3, RetryLetterTopic: topic + "-retries",
				DeadLetterTopic: topic + "-letters",
			}
		})
		if err != nil {
			return err
		}
		if _, err := o.sendAll(topic, 1); err != nil {
			return err
		}
		message, err := next(consumer, "0")
		if err != nil {
			return err
		}
		consumer.ReconsumeLater(message, 100*time.Millisecond)
		message, err = next(consumer, "0")
		if err != nil {
			return err
		}
		return wanted(strings.HasSuffix(message.Topic(), "-retries"), "%s", message.Topic())
	})
}

func (o *operations) places() {
	seeking := func(topic string) (pulsar.Consumer, []pulsar.MessageID, error) {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return nil, nil, err
		}
		ids, err := o.sendAll(topic, 5)
		if err != nil {
			return nil, nil, err
		}
		return consumer, ids, each(consumer, "0", "1", "2", "3", "4")
	}
	o.run("seek by id", func(topic string) error {
		consumer, ids, err := seeking(topic)
		if err != nil {
			return err
		}
		if err := consumer.Seek(ids[2]); err != nil {
			return err
		}
		// Go's client asks for the message itself, other clients for the one behind it.
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		found := string(message.Payload())
		return wanted(found == "2" || found == "3", "%s", found)
	})
	o.run("seek by id, inclusive", func(topic string) error {
		consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
			options.StartMessageIDInclusive = true
		})
		if err != nil {
			return err
		}
		ids, err := o.sendAll(topic, 5)
		if err != nil {
			return err
		}
		if err := each(consumer, "0", "1", "2", "3", "4"); err != nil {
			return err
		}
		if err := consumer.Seek(ids[2]); err != nil {
			return err
		}
		return each(consumer, "2", "3", "4")
	})
	o.run("seek by time", func(topic string) error {
		consumer, _, err := seeking(topic)
		if err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
		now := time.Now()
		time.Sleep(50 * time.Millisecond)
		producer, err := o.producer(topic, nil)
		if err != nil {
			return err
		}
		if _, err := o.send(producer, "new"); err != nil {
			return err
		}
		if err := consumer.SeekByTime(now); err != nil {
			return err
		}
		_, err = next(consumer, "new")
		return err
	})
	o.run("reader", func(topic string) error {
		ids, err := o.sendAll(topic, 5)
		if err != nil {
			return err
		}
		reader, err := o.client.CreateReader(pulsar.ReaderOptions{
			Topic: topic, StartMessageID: ids[1],
		})
		if err != nil {
			return err
		}
		found := ""
		for reader.HasNext() {
			message, err := reader.Next(within())
			if err != nil {
				return err
			}
			found += string(message.Payload())
		}
		if found != "234" {
			return errors.New(found)
		}
		if err := reader.Seek(ids[2]); err != nil {
			return err
		}
		message, err := reader.Next(within())
		if err != nil {
			return err
		}
		return wanted(string(message.Payload()) == "3", "%s", message.Payload())
	})
	o.run("last message id", func(topic string) error {
		consumer, ids, err := seeking(topic)
		if err != nil {
			return err
		}
		found, err := consumer.GetLastMessageIDs()
		if err != nil {
			return err
		}
		good := found[0].EntryID() == ids[4].EntryID() && found[0].LedgerID() == ids[4].LedgerID()
		return wanted(good, "%v", found)
	})
}

func (o *operations) others() {
	o.run("partitions of a topic", func(topic string) error {
		if err := o.ask("PUT", topic, "partitions", "3"); err != nil {
			return err
		}
		names, err := o.client.TopicPartitions(topic)
		if err != nil {
			return err
		}
		return wanted(len(names) == 3, "%v", names)
	})
	o.run("topic that does not exist", func(string) error {
		_, err := o.client.Subscribe(pulsar.ConsumerOptions{
			Topic: "persistent://public/nowhere/x", SubscriptionName: "s",
		})
		return wanted(err != nil, "a consumer was admitted")
	})
	o.run("reconnect after an unload", func(topic string) error {
		consumer, err := o.consumer(topic, nil)
		if err != nil {
			return err
		}
		producer, err := o.producer(topic, nil)
		if err != nil {
			return err
		}
		if _, err := o.send(producer, "0"); err != nil {
			return err
		}
		if err := o.ask("PUT", topic, "unload", ""); err != nil {
			return err
		}
		if _, err := o.send(producer, "1"); err != nil {
			return err
		}
		got := map[string]bool{}
		for len(got) < 2 {
			message, err := receive(consumer)
			if err != nil {
				return err
			}
			got[string(message.Payload())] = true
		}
		return nil
	})
	o.run("lookup over HTTP", func(topic string) error {
		client, err := pulsar.NewClient(pulsar.ClientOptions{URL: o.admin})
		if err != nil {
			return err
		}
		defer client.Close()
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		if err != nil {
			return err
		}
		_, err = o.send(producer, "x")
		return err
	})
}

// -- what the operations share

func wanted(good bool, format string, words ...any) error {
	if good {
		return nil
	}
	return fmt.Errorf(format, words...)
}

func within() context.Context {
	limited, stop := context.WithTimeout(context.Background(), soon)
	_ = stop
	return limited
}

func shared(options *pulsar.ConsumerOptions) { options.Type = pulsar.Shared }

func oneShared(options *pulsar.ConsumerOptions) {
	options.Type = pulsar.Shared
	options.ReceiverQueueSize = 1
}

func alone(options *pulsar.ProducerOptions) { options.DisableBatching = true }

func (o *operations) producer(
	topic string, change func(*pulsar.ProducerOptions),
) (pulsar.Producer, error) {
	options := pulsar.ProducerOptions{Topic: topic, SendTimeout: soon}
	if change != nil {
		change(&options)
	}
	return o.client.CreateProducer(options)
}

func (o *operations) consumer(
	topic string, change func(*pulsar.ConsumerOptions),
) (pulsar.Consumer, error) {
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	if change != nil {
		change(&options)
	}
	return o.client.Subscribe(options)
}

func (o *operations) send(producer pulsar.Producer, text string) (pulsar.MessageID, error) {
	return producer.Send(within(), &pulsar.ProducerMessage{Payload: []byte(text)})
}

// sendUntilItComes repeats the message, because a non-persistent topic drops what nobody waits for.
func (o *operations) sendUntilItComes(
	producer pulsar.Producer, consumer pulsar.Consumer, text string,
) error {
	for limit := time.Now().Add(soon); time.Now().Before(limit); {
		if _, err := o.send(producer, text); err != nil {
			return err
		}
		waiting, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
		message, err := consumer.Receive(waiting)
		stop()
		if err == nil {
			return wanted(string(message.Payload()) == text, "%s", message.Payload())
		}
	}
	return errors.New("no message comes")
}

func (o *operations) sendAll(topic string, count int) ([]pulsar.MessageID, error) {
	producer, err := o.producer(topic, alone)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var ids []pulsar.MessageID
	for number := range count {
		id, err := o.send(producer, fmt.Sprint(number))
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (o *operations) sendBatch(
	topic string, count int, change func(*pulsar.ProducerOptions),
) error {
	producer, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
		options.BatchingMaxPublishDelay = time.Minute
		if change != nil {
			change(options)
		}
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	failed := make(chan error, count)
	for number := range count {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprintf("k%d", number%2),
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				failed <- err
			}
		})
	}
	if err := producer.Flush(); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (o *operations) trip(
	topic string, message *pulsar.ProducerMessage, change func(*pulsar.ProducerOptions),
) (pulsar.Message, error) {
	consumer, err := o.consumer(topic, nil)
	if err != nil {
		return nil, err
	}
	producer, err := o.producer(topic, change)
	if err != nil {
		return nil, err
	}
	if _, err := producer.Send(within(), message); err != nil {
		return nil, err
	}
	return receive(consumer)
}

func (o *operations) roundTrip(
	topic, text string, producing func(*pulsar.ProducerOptions),
	consuming func(*pulsar.ConsumerOptions),
) error {
	consumer, err := o.consumer(topic, consuming)
	if err != nil {
		return err
	}
	producer, err := o.producer(topic, producing)
	if err != nil {
		return err
	}
	if _, err := o.send(producer, text); err != nil {
		return err
	}
	_, err = next(consumer, text)
	return err
}

func (o *operations) three(
	topic string, change func(*pulsar.ConsumerOptions),
) (pulsar.Consumer, []pulsar.Message, error) {
	consumer, err := o.consumer(topic, change)
	if err != nil {
		return nil, nil, err
	}
	if _, err := o.sendAll(topic, 3); err != nil {
		return nil, nil, err
	}
	var messages []pulsar.Message
	for number := range 3 {
		message, err := next(consumer, fmt.Sprint(number))
		if err != nil {
			return nil, nil, err
		}
		messages = append(messages, message)
	}
	return consumer, messages, nil
}

func receive(consumer pulsar.Consumer) (pulsar.Message, error) {
	return consumer.Receive(within())
}

func next(consumer pulsar.Consumer, content string) (pulsar.Message, error) {
	message, err := receive(consumer)
	if err != nil {
		return nil, err
	}
	found := string(message.Payload())
	return message, wanted(found == content, "%.20s came instead of %.20s", found, content)
}

func each(consumer pulsar.Consumer, contents ...string) error {
	for _, content := range contents {
		if _, err := next(consumer, content); err != nil {
			return err
		}
	}
	return nil
}

func nothing(consumer pulsar.Consumer) error {
	limited, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer stop()
	if message, err := consumer.Receive(limited); err == nil {
		return fmt.Errorf("%s came", message.Payload())
	}
	return nil
}

func newKeys() (crypto.KeyReader, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	secret := x509.MarshalPKCS1PrivateKey(key)
	open, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "keys")
	if err != nil {
		return nil, err
	}
	paths := []string{filepath.Join(directory, "open"), filepath.Join(directory, "secret")}
	blocks := []*pem.Block{{Type: "PUBLIC KEY", Bytes: open}, {Type: "RSA PRIVATE KEY", Bytes: secret}}
	for index, path := range paths {
		if err := os.WriteFile(path, pem.EncodeToMemory(blocks[index]), 0o600); err != nil {
			return nil, err
		}
	}
	return crypto.NewFileKeyReader(paths[0], paths[1]), nil
}

func (o *operations) ask(method, topic, path, body string) error {
	_, err := o.request(method, topic, path, body)
	return err
}

func (o *operations) get(topic, path string) (string, error) {
	return o.request("GET", topic, path, "")
}

func (o *operations) request(method, topic, path, body string) (string, error) {
	url := o.admin + "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/" + path
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%d %s", answer.StatusCode, text)
	}
	return string(text), err
}
