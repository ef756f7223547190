// Key_shared subscriptions with Apache Pulsar's Go client.

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	keyedMessages = 200
	keys          = 10
	leavesAfter   = 50
	queueSize     = 20 // with "killed" most messages are still with the broker
)

// keyShared says of each message that comes: consumer, key, number.  (The client leaves the ordering
// key out of the metadata of its batches, so it is of no use for a broker.)  With "auto" one of two
// consumers leaves with what it has not acknowledged, and another one comes.  With "sticky" nobody
// leaves, and it says first how a consumer with overlapping ranges is refused.  With "killed" it says
// "now" and waits for a line, before which somebody kills the broker.
func keyShared(client pulsar.Client, topic string, mode string) {
	sticky := mode == "sticky"
	subscribe := func(name string, ranges []int) (pulsar.Consumer, error) {
		options := pulsar.ConsumerOptions{
			Topic:                       topic,
			SubscriptionName:            "keys",
			Name:                        name,
			Type:                        pulsar.KeyShared,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		}
		if sticky {
			policy, err := pulsar.NewKeySharedPolicySticky(ranges)
			check(err)
			options.KeySharedPolicy = policy
		}
		if mode == "killed" {
			options.ReceiverQueueSize = queueSize
		}
		return client.Subscribe(options)
	}
	one, err := subscribe("c0", []int{0, 32767})
	check(err)
	two, err := subscribe("c1", []int{32768, 65535})
	check(err)
	if sticky {
		_, err := subscribe("c2", []int{100, 200})
		say("%v", err)
	}
	sendKeyed(client, topic)
	consumers := []pulsar.Consumer{one, two}
	acknowledged := map[string]bool{}
	received, left := 0, false
	for len(acknowledged) < keyedMessages {
		for _, consumer := range consumers {
			waiting, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			message, err := consumer.Receive(waiting)
			cancel()
			if err != nil {
				continue
			}
			say("%s %s %s", consumer.Name(), message.Key(), message.Payload())
			received++
			if mode != "auto" || consumer != two {
				check(consumer.Ack(message))
				acknowledged[string(message.Payload())] = true
			}
		}
		if sticky || left || received <= leavesAfter {
			continue
		}
		left = true
		if mode == "killed" {
			say("now")
			_, err := bufio.NewReader(os.Stdin).ReadString('\n')
			check(err)
			continue
		}
		three, err := subscribe("c2", nil)
		check(err)
		two.Close()
		consumers = []pulsar.Consumer{one, three}
	}
	say("done")
}

func sendKeyed(client pulsar.Client, topic string) {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:              topic,
		BatcherBuilderType: pulsar.KeyBasedBatchBuilder,
	})
	check(err)
	for number := 0; number < keyedMessages; number++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)),
			Key:     fmt.Sprintf("order-%d", number%keys),
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(producer.Flush())
	producer.Close()
}
