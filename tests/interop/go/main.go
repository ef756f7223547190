// Apache Pulsar's Go client, as applications use it.
//
//	client failover URL TOPIC    two consumers of a failover subscription, and who is active
//	client terminate URL TOPIC   a producer that sends until the topic is terminated
//	client large URL TOPIC       one of two producers sends a message with too large properties
//	client table URL TOPIC       a reader of the compacted topic, and a table view
//	client key-shared URL TOPIC MODE  consumers by key; MODE is auto, sticky or killed
//	client grow URL TOPIC        a consumer that looks for new partitions once a second
//	client operations URL ADMIN  one operation after the other (`operations.go`)
//	client admin URL TOPIC ADMIN a namespace with the default policies; statistics; deletion
//	client ways                  requests on standard input, each with its credentials (`ways.go`)
//
// Each event is a line.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

const patience = 60 * time.Second

var saying sync.Mutex

func say(format string, words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Printf(format+"\n", words...)
}

func check(err error) {
	if err != nil {
		say("error %v", err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "ways" {
		ways()
		return
	}
	quiet := logrus.New()
	quiet.SetOutput(os.Stderr)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:    os.Args[2],
		Logger: log.NewLoggerWithLogrus(quiet),
	})
	check(err)
	defer client.Close()
	switch os.Args[1] {
	case "failover":
		failover(client, os.Args[3])
	case "terminate":
		terminate(client, os.Args[3])
	case "large":
		large(client, os.Args[3])
	case "grow":
		grow(client, os.Args[3])
	case "once":
		once(client, os.Args[3])
	case "moves":
		wanted, err := strconv.Atoi(os.Args[4])
		check(err)
		moves(client, os.Args[3], wanted)
	case "table":
		table(client, os.Args[3])
	case "key-shared":
		keyShared(client, os.Args[3], os.Args[4])
	case "backlog":
		backlog(client, os.Args[3], os.Args[4])
	case "operations":
		runOperations(client, os.Args[3])
	case "admin":
		administer(client, os.Args[3], os.Args[4])
	}
}

// listener says when a consumer became active or inactive.
type listener struct {
	name   string
	events chan string
}

func (l *listener) BecameActive(pulsar.Consumer, string, int32)   { l.events <- l.name + " active" }
func (l *listener) BecameInactive(pulsar.Consumer, string, int32) { l.events <- l.name + " inactive" }

func failover(client pulsar.Client, topic string) {
	events := make(chan string, 100)
	subscribe := func(name string) pulsar.Consumer {
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic:            topic,
			SubscriptionName: "sub",
			Name:             name,
			Type:             pulsar.Failover,
			EventListener:    &listener{name, events},
		})
		check(err)
		return consumer
	}
	next := func() {
		select {
		case event := <-events:
			say("%s", event)
		case <-time.After(patience):
			say("nothing")
			os.Exit(1)
		}
	}
	one := subscribe("a")
	next()
	two := subscribe("b")
	next()
	one.Close()
	next()
	two.Close()
}

// terminate sends a message every few milliseconds.  It says "sending" when some are stored, and in
// the end how many were stored, how many were refused, and how many had another error.
func terminate(client pulsar.Client, topic string) {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:           topic,
		DisableBatching: true,
		SendTimeout:     30 * time.Second,
	})
	check(err)
	var stored, refused, other, pending atomic.Int64
	ended := make(chan struct{})
	var once sync.Once
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		defer pending.Add(-1)
		switch {
		case err == nil:
			if stored.Add(1) == 10 {
				say("sending")
			}
		case errors.Is(err, pulsar.ErrTopicTerminated), errors.Is(err, pulsar.ErrProducerClosed):
			// The client closes its producer of a topic that has ended, and says so of later sends.
			refused.Add(1)
			once.Do(func() { close(ended) })
		default:
			say("other %v", err)
			other.Add(1)
			once.Do(func() { close(ended) })
		}
	}
	deadline := time.After(patience)
	for number := 0; ; number++ {
		pending.Add(1)
		content := []byte(fmt.Sprint(number))
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: content}, done)
		select {
		case <-ended:
			for wait := 0; pending.Load() > 0 && wait < 1000; wait++ {
				time.Sleep(10 * time.Millisecond)
			}
			say("stored %d refused %d other %d unanswered %d",
				stored.Load(), refused.Load(), other.Load(), pending.Load())
			return
		case <-deadline:
			say("nothing: stored %d", stored.Load())
			os.Exit(1)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// large says what became of the message, and of one that the other producer sent behind it.
func large(client pulsar.Client, topic string) {
	create := func(name string) pulsar.Producer {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic:           name,
			DisableBatching: true,
			SendTimeout:     3 * time.Second,
		})
		check(err)
		return producer
	}
	one, two := create(topic), create(topic+"-other")
	result := make(chan error, 1)
	one.SendAsync(context.Background(), &pulsar.ProducerMessage{
		Properties: map[string]string{"large": strings.Repeat("x", 2<<20)},
	}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { result <- err })
	for number := 0; number < 10; number++ {
		_, err := two.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")})
		check(err)
	}
	say("the other one goes on")
	say("%v", <-result)
}

// once sends messages, some of them again, as an application that starts again.
func once(client pulsar.Client, topic string) {
	for _, ids := range [][]int64{{1, 2, 3}, {2, 3, 4}} {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, Name: "go", DisableBatching: true,
		})
		check(err)
		told := fmt.Sprintf("behind %d:", producer.LastSequenceID())
		for _, id := range ids {
			number := id
			place, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
				Payload: []byte(fmt.Sprintf("%d,", id)), SequenceID: &number,
			})
			check(err)
			if place.LedgerID() < 0 {
				told += " repeat"
			} else {
				told += " new"
			}
		}
		say("%s", told)
		producer.Close()
	}
}

// table says what a reader of the compacted topic gets, and what a table view has.
func table(client pulsar.Client, topic string) {
	reader, err := client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
	})
	check(err)
	words := []string{"reader"}
	for reader.HasNext() {
		message, err := reader.Next(context.Background())
		check(err)
		words = append(words, message.Key()+"="+string(message.Payload()))
	}
	say("%s", strings.Join(words, " "))
	reader.Close()
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: reflect.TypeOf([]byte{}),
	})
	check(err)
	words = nil
	for key, value := range view.Entries() {
		words = append(words, key+"="+string(value.([]byte)))
	}
	sort.Strings(words)
	say("table %s", strings.Join(words, " "))
	view.Close()
}

// administer leaves two batches of five messages, of which a consumer has acknowledged the second.
func administer(client pulsar.Client, topic string, url string) {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: url})
	check(err)
	check(admin.Namespaces().CreateNsWithPolices("public/go", *utils.NewDefaultPolicies()))
	say("made public/go")
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "sub", Type: pulsar.Shared,
	})
	check(err)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, BatchingMaxPublishDelay: time.Minute, BatchingMaxMessages: 5,
	})
	check(err)
	for number := 0; number < 10; number++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(producer.Flush())
	for number := 0; number < 10; number++ {
		message, err := consumer.Receive(context.Background())
		check(err)
		if number >= 5 {
			check(consumer.Ack(message))
		}
	}
	name, err := utils.GetTopicName(topic)
	check(err)
	for wait := 0; ; wait++ {
		internal, err := admin.Topics().GetInternalStats(*name)
		check(err)
		if ranges := internal.Cursors["sub"].IndividuallyDeletedMessages; ranges != "[]" || wait > 500 {
			say("ranges %s", ranges)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	stats, err := admin.Topics().GetStats(*name)
	check(err)
	found := stats.Subscriptions["sub"]
	say("backlog %d, %d a batch, bytes: %t", found.MsgBacklog, found.Consumers[0].AvgMessagesPerEntry,
		found.BacklogSize > 0 && stats.BacklogSize >= found.BacklogSize)
	say("in use: %t", admin.Topics().Delete(*name, false, true) != nil)
	consumer.Close()
	producer.Close()
	check(admin.Topics().Delete(*name, false, true))
	say("deleted")
}

// grow says "ready", and then the topic and the content of each of three messages.
func grow(client pulsar.Client, topic string) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:               topic,
		SubscriptionName:    "sub",
		Type:                pulsar.Shared,
		AutoDiscoveryPeriod: time.Second,
	})
	check(err)
	say("ready")
	for range 3 {
		within, stop := context.WithTimeout(context.Background(), patience)
		message, err := consumer.Receive(within)
		stop()
		check(err)
		check(consumer.Ack(message))
		name := message.Topic()
		say("%s %s", name[strings.LastIndex(name, "/")+1:], message.Payload())
	}
	consumer.Close()
}

// backlog looks at the messages of a subscription, and acknowledges some, by the admin client.
func backlog(client pulsar.Client, topic string, url string) {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: url})
	check(err)
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "sub", Type: pulsar.Shared, ReceiverQueueSize: 1,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	check(err)
	for number := 0; number < 6; number++ {
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload:    []byte(fmt.Sprint(number)),
			Properties: map[string]string{"Number": fmt.Sprint(number)},
		})
		check(err)
	}
	producer.Close()
	name, err := utils.GetTopicName(topic)
	check(err)
	subscriptions := admin.Subscriptions()
	seen := func() string {
		messages, err := subscriptions.PeekMessages(*name, "sub", 2)
		check(err)
		found := ""
		for _, message := range messages {
			found += fmt.Sprintf(" %s=%s", message.GetPayload(), message.Properties["Number"])
		}
		return found
	}
	say("peeked%s", seen())
	check(subscriptions.SkipMessages(*name, "sub", 3))
	say("after a skip%s", seen())
	messages, err := subscriptions.PeekMessages(*name, "sub", 1)
	check(err)
	id := messages[0].GetMessageID()
	same, err := subscriptions.GetMessageByID(*name, id.LedgerID, id.EntryID)
	check(err)
	say("by id %s", same.GetPayload())
	check(subscriptions.ExpireMessages(*name, "sub", 3600))
	check(subscriptions.ExpireAllMessages(*name, 3600))
	say("after an expiry%s", seen())
	info, err := admin.Topics().GetInternalInfo(*name)
	check(err)
	say("ledgers: %t, cursors %d", len(info.Ledgers) > 0, len(info.Cursors))
	check(subscriptions.ClearBacklog(*name, "sub"))
	stats, err := admin.Topics().GetStats(*name)
	check(err)
	say("backlog %d", stats.Subscriptions["sub"].MsgBacklog)
}
