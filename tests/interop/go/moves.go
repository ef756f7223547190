// A producer and a consumer of a topic that moves between brokers.
package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// moves sends and receives so many messages while the topic moves from broker to broker.  It says
// "sending" when some are stored, and in the end how many were stored, failed, and were received,
// and how many of these differ.
func moves(client pulsar.Client, topic string, wanted int) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "sub"})
	check(err)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: "go"})
	check(err)
	var stored, failed atomic.Int64
	var pending sync.WaitGroup
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		defer pending.Done()
		if err != nil {
			failed.Add(1)
		} else if stored.Add(1) == 10 {
			say("sending")
		}
	}
	pending.Add(wanted)
	go func() {
		for number := 0; number < wanted; number++ {
			content := []byte(fmt.Sprint(number))
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: content}, done)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	seen := map[string]bool{}
	received := 0
	for len(seen)+int(failed.Load()) < wanted {
		limit, cancel := context.WithTimeout(context.Background(), patience)
		message, err := consumer.Receive(limit)
		cancel()
		if err != nil {
			break
		}
		received++
		seen[string(message.Payload())] = true
		check(consumer.Ack(message))
	}
	pending.Wait()
	say("stored %d failed %d received %d distinct %d", stored.Load(), failed.Load(), received, len(seen))
}
