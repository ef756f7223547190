// The client, and the admin client, with the credentials that each request names.
//
// Each line of the input is a request: fields `key=value`, separated by tabs.  The field `do` names
// the function that serves it, the others say where the brokers are and who the client is.  The
// answer is one line: "ok" and what was found, or "refused" and the text of the error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

const wayPatience = 120 * time.Second

const readingDefinition = `{"type":"record","name":"Reading","fields":[
	{"name":"sensor","type":["null","string"],"default":null},{"name":"value","type":"int"}]}`

type reading struct {
	Sensor string `json:"sensor"`
	Value  int    `json:"value"`
}

type way struct {
	fields   map[string]string
	supplied atomic.Int64
}

func ways() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for lines.Scan() {
		w := &way{fields: map[string]string{}}
		for _, field := range strings.Split(lines.Text(), "\t") {
			key, value, _ := strings.Cut(field, "=")
			w.fields[key] = value
		}
		answer, err := w.serve()
		if err != nil {
			answer = "refused " + err.Error()
		} else {
			answer = "ok " + answer
		}
		say("%s", strings.Join(strings.Fields(answer), " "))
	}
}

func (w *way) serve() (string, error) {
	// The client shares one pool of connections, with the certificates of whoever made them.
	http.DefaultTransport = http.DefaultTransport.(*http.Transport).Clone()
	if w.fields["do"] == "admin" {
		return w.administer()
	}
	client, err := w.client()
	if err != nil {
		return "", err
	}
	defer client.Close()
	switch w.fields["do"] {
	case "exchange":
		return w.exchange(client)
	case "produce":
		return w.produce(client)
	case "consume":
		return w.consume(client)
	case "partitions":
		return w.partitions(client)
	case "pattern":
		return w.pattern(client)
	case "schema":
		return w.schema(client)
	case "stay":
		return w.stay(client)
	}
	return "", errors.New("there is no such request: " + w.fields["do"])
}

func (w *way) seconds(field string) time.Duration {
	number, err := strconv.Atoi(w.fields[field])
	check(err)
	return time.Duration(number) * time.Second
}

func (w *way) client() (pulsar.Client, error) {
	quiet := logrus.New()
	quiet.SetOutput(os.Stderr)
	authentication, err := w.authentication()
	if err != nil {
		return nil, err
	}
	return pulsar.NewClient(pulsar.ClientOptions{
		URL:                        w.fields["url"],
		OperationTimeout:           w.seconds("timeout"),
		TLSTrustCertsFilePath:      w.fields["trusted"],
		TLSValidateHostname:        w.fields["verify"] != "no",
		TLSAllowInsecureConnection: w.fields["verify"] == "nothing",
		Authentication:             authentication,
		Logger:                     log.NewLoggerWithLogrus(quiet),
	})
}

func (w *way) authentication() (pulsar.Authentication, error) {
	switch w.fields["auth"] {
	case "", "none":
		return nil, nil
	case "token":
		return pulsar.NewAuthenticationToken(w.fields["token"]), nil
	case "file":
		return pulsar.NewAuthenticationTokenFromFile(w.fields["file"]), nil
	case "supplier":
		return pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
			w.supplied.Add(1)
			text, err := os.ReadFile(w.fields["file"])
			return strings.TrimSpace(string(text)), err
		}), nil
	case "basic":
		return pulsar.NewAuthenticationBasic(w.fields["user"], w.fields["password"])
	case "tls":
		return pulsar.NewAuthenticationTLS(w.fields["certificate"], w.fields["key"]), nil
	case "oauth2":
		return pulsar.NewAuthenticationOAuth2(map[string]string{
			"type":       "client_credentials",
			"issuerUrl":  w.fields["issuer"],
			"audience":   w.fields["audience"],
			"privateKey": w.fields["key_file"],
		}), nil
	}
	return nil, errors.New("there is no such way in: " + w.fields["auth"])
}

func (w *way) subscribe(client pulsar.Client, topic string) (pulsar.Consumer, error) {
	return client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: w.fields["subscription"],
	})
}

// exchange sends to each topic and receives: the brokers of all of them let the client in.
func (w *way) exchange(client pulsar.Client) (string, error) {
	count := 0
	for _, topic := range strings.Split(w.fields["topics"], ",") {
		consumer, err := w.subscribe(client, topic)
		if err != nil {
			return "", err
		}
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: true,
		})
		if err != nil {
			return "", err
		}
		for _, size := range []int{1, 20_000, 100_000} {
			body := []byte(strings.Repeat("x", size))
			message := &pulsar.ProducerMessage{Payload: body}
			if _, err := producer.Send(context.Background(), message); err != nil {
				return "", err
			}
			found, err := received(consumer, 1)
			if err != nil {
				return "", err
			}
			if len(found[0].Payload()) != size {
				return "", errors.New("another message came")
			}
			count++
		}
		producer.Close()
		consumer.Close()
	}
	return fmt.Sprintf("%d messages", count), nil
}

func received(consumer pulsar.Consumer, count int) ([]pulsar.Message, error) {
	limit, cancel := context.WithTimeout(context.Background(), wayPatience)
	defer cancel()
	var found []pulsar.Message
	for len(found) < count {
		message, err := consumer.Receive(limit)
		if err != nil {
			return nil, err
		}
		if err := consumer.Ack(message); err != nil {
			return nil, err
		}
		found = append(found, message)
	}
	return found, nil
}

func (w *way) produce(client pulsar.Client) (string, error) {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: w.fields["topic"]})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")})
	return "stored", err
}

func (w *way) consume(client pulsar.Client) (string, error) {
	consumer, err := w.subscribe(client, w.fields["topic"])
	if err != nil {
		return "", err
	}
	consumer.Close()
	return "subscribed", nil
}

// partitions sends ten messages to a topic with partitions, and receives them.
func (w *way) partitions(client pulsar.Client) (string, error) {
	topic := w.fields["topic"]
	partitions, err := client.TopicPartitions(topic)
	if err != nil {
		return "", err
	}
	consumer, err := w.subscribe(client, topic)
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true,
	})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	for number := range 10 {
		message := &pulsar.ProducerMessage{Payload: []byte{byte(number)}}
		if _, err := producer.Send(context.Background(), message); err != nil {
			return "", err
		}
	}
	found, err := received(consumer, 10)
	return fmt.Sprintf("%d partitions, %d messages", len(partitions), len(found)), err
}

// pattern receives what the topics of a pattern hold.
func (w *way) pattern(client pulsar.Client) (string, error) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		TopicsPattern:               w.fields["pattern"],
		SubscriptionName:            w.fields["subscription"],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	count, err := strconv.Atoi(w.fields["count"])
	check(err)
	found, err := received(consumer, count)
	if err != nil {
		return "", err
	}
	var topics []string
	for _, message := range found {
		topics = append(topics, message.Topic()[strings.LastIndex(message.Topic(), "/")+1:])
	}
	sort.Strings(topics)
	return strings.Join(topics, " "), nil
}

// schema registers a schema by sending, and reads with it.
func (w *way) schema(client pulsar.Client) (string, error) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:            w.fields["topic"],
		SubscriptionName: w.fields["subscription"],
		Schema:           pulsar.NewJSONSchema(readingDefinition, nil),
	})
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: w.fields["topic"], Schema: pulsar.NewJSONSchema(readingDefinition, nil),
	})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	message := &pulsar.ProducerMessage{Value: &reading{"s", 7}}
	if _, err := producer.Send(context.Background(), message); err != nil {
		return "", err
	}
	found, err := received(consumer, 1)
	if err != nil {
		return "", err
	}
	var value reading
	if err := found[0].GetSchemaValue(&value); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d", value.Sensor, value.Value), nil
}

// stay sends and receives for some seconds.  It says how many messages were sent, which came and
// which failed, and how often the supplier was asked.
func (w *way) stay(client pulsar.Client) (string, error) {
	consumer, err := w.subscribe(client, w.fields["topic"])
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: w.fields["topic"], DisableBatching: true, SendTimeout: w.seconds("timeout"),
	})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	stored, got, repeated, failed := map[string]bool{}, map[string]bool{}, 0, ""
	take := func(patience time.Duration) bool {
		limit, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		message, err := consumer.Receive(limit)
		if err != nil {
			return false
		}
		if got[string(message.Payload())] {
			repeated++
		}
		got[string(message.Payload())] = true
		return consumer.Ack(message) == nil
	}
	until := time.Now().Add(w.seconds("seconds"))
	for number := 0; time.Now().Before(until); number++ {
		text := strconv.Itoa(number)
		message := &pulsar.ProducerMessage{Payload: []byte(text)}
		if _, err := producer.Send(context.Background(), message); err != nil {
			failed = err.Error() // The producer does not recover without other credentials.
			break
		}
		stored[text] = true
		take(20 * time.Millisecond)
	}
	for failed == "" && len(got) < len(stored) && take(10*time.Second) {
	}
	return fmt.Sprintf("stored=%d received=%d repeated=%d failed={%s} supplied=%d",
		len(stored), len(got), repeated, failed, w.supplied.Load()), nil
}

// administer lists topics, and asks for the statistics of some: their brokers are redirected to.
func (w *way) administer() (string, error) {
	config := &pulsaradmin.Config{
		WebServiceURL:                 w.fields["admin_url"],
		TLSTrustCertsFilePath:         w.fields["trusted"],
		TLSAllowInsecureConnection:    w.fields["verify"] == "nothing",
		TLSEnableHostnameVerification: w.fields["verify"] != "no",
	}
	switch w.fields["auth"] {
	case "", "none":
	case "token":
		config.Token = w.fields["token"]
	case "file":
		config.TokenFile = w.fields["file"]
	case "tls":
		params, err := json.Marshal(map[string]string{
			"tlsCertFile": w.fields["certificate"], "tlsKeyFile": w.fields["key"],
		})
		check(err)
		config.AuthPlugin, config.AuthParams = "tls", string(params)
	case "oauth2":
		config.AuthPlugin = "oauth2"
		config.IssuerEndpoint = w.fields["issuer"]
		config.Audience = w.fields["audience"]
		config.KeyFile = w.fields["key_file"]
	default:
		return "", errors.New("there is no such way in: " + w.fields["auth"])
	}
	admin, err := pulsaradmin.NewClient(config)
	if err != nil {
		return "", err
	}
	if _, err := admin.Namespaces().GetTopics("public/default"); err != nil {
		return "", err
	}
	count := 0
	for _, topic := range strings.Split(w.fields["topics"], ",") {
		name, err := utils.GetTopicName(topic)
		check(err)
		if _, err := admin.Topics().GetStats(*name); err != nil {
			return "", err
		}
		count++
	}
	return fmt.Sprintf("statistics of %d topics", count), nil
}
