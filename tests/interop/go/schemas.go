// Operations with schemas.
package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const userDefinition = `{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}`

type user struct {
	Name string `json:"name" avro:"name"`
}

func (o *operations) schemas() {
	o.run("schemas string, JSON and Avro", func(topic string) error {
		ann := user{"ann"}
		return errors.Join(
			o.typed(topic+"-string", pulsar.NewStringSchema(nil), "häuser", new(*string)),
			o.typed(topic+"-json", pulsar.NewJSONSchema(userDefinition, nil), &ann, &user{}),
			o.typed(topic+"-avro", pulsar.NewAvroSchema(userDefinition, nil), &ann, &user{}),
		)
	})
	o.run("schemas of numbers", func(topic string) error {
		// The client has names for these types, and no schemas.
		for _, kind := range []pulsar.SchemaType{
			pulsar.BOOLEAN, pulsar.KeyValue, pulsar.AUTO, pulsar.AutoConsume, pulsar.AutoPublish,
		} {
			if _, err := pulsar.NewSchema(kind, nil, nil); err == nil {
				return fmt.Errorf("there is a schema of type %v", kind)
			}
		}
		return errors.Join(
			o.typed(topic+"-int8", pulsar.NewInt8Schema(nil), int8(-8), new(int8)),
			o.typed(topic+"-int16", pulsar.NewInt16Schema(nil), int16(-1<<15), new(int16)),
			o.typed(topic+"-int32", pulsar.NewInt32Schema(nil), int32(-1<<31), new(int32)),
			o.typed(topic+"-int64", pulsar.NewInt64Schema(nil), int64(1<<40), new(int64)),
			o.typed(topic+"-float", pulsar.NewFloatSchema(nil), float32(0.5), new(float32)),
			o.typed(topic+"-double", pulsar.NewDoubleSchema(nil), 0.25, new(float64)),
		)
	})
	o.run("schemas of Protobuf", func(topic string) error {
		definition := `{"type":"record","name":"Duration","fields":[
			{"name":"seconds","type":"long","default":0},{"name":"nanos","type":"int","default":0}]}`
		value := &durationpb.Duration{Seconds: 7, Nanos: 9}
		native := pulsar.NewProtoNativeSchemaWithMessage(value, nil)
		return errors.Join(
			o.typed(topic, pulsar.NewProtoSchema(definition, nil), value, &durationpb.Duration{}),
			o.typed(topic+"-native", native, value, &durationpb.Duration{}),
		)
	})
	o.run("versions of a schema", o.versions)
	o.run("a schema that does not fit", func(topic string) error {
		_, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
			options.Schema = pulsar.NewAvroSchema(userDefinition, nil)
		})
		if err != nil {
			return err
		}
		for _, other := range []pulsar.Schema{
			pulsar.NewInt64Schema(nil),
			pulsar.NewAvroSchema(strings.Replace(userDefinition, "string", "int", 1), nil),
		} {
			_, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
				options.Schema = other
				options.MaxReconnectToBroker = new(uint)
			})
			if err == nil {
				return fmt.Errorf("a producer of %s was admitted", other.GetSchemaInfo().Name)
			}
		}
		return nil
	})
}

// typed sends a value, and compares it with what comes.
func (o *operations) typed(topic string, schema pulsar.Schema, value, into any) error {
	consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
		options.Schema = schema
	})
	if err != nil {
		return fmt.Errorf("%s: %w", topic, err)
	}
	producer, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
		options.Schema = schema
	})
	if err != nil {
		return fmt.Errorf("%s: %w", topic, err)
	}
	if _, err := producer.Send(within(), &pulsar.ProducerMessage{Value: value}); err != nil {
		return fmt.Errorf("%s: %w", topic, err)
	}
	message, err := receive(consumer)
	if err != nil {
		return fmt.Errorf("%s: %w", topic, err)
	}
	if err := message.GetSchemaValue(into); err != nil {
		return fmt.Errorf("%s: %w", topic, err)
	}
	return wanted(same(value, into), "%s: %v came instead of %v", topic, into, value)
}

func same(value, into any) bool {
	if sent, ok := value.(proto.Message); ok {
		return proto.Equal(sent, into.(proto.Message))
	}
	found := reflect.Indirect(reflect.ValueOf(into).Elem()) // of a string there is a pointer to a pointer
	return reflect.DeepEqual(value, into) || reflect.DeepEqual(value, found.Interface())
}

// versions sends messages of two versions, of which the client reads each as it was written.
func (o *operations) versions(topic string) error {
	type userWithTown struct {
		Name string `avro:"name"`
		Town string `avro:"town"`
	}
	old := pulsar.NewAvroSchema(userDefinition, nil)
	young := pulsar.NewAvroSchema(`{"type":"record","name":"User","fields":[
		{"name":"name","type":"string"},{"name":"town","type":"string","default":""}]}`, nil)
	producer, err := o.producer(topic, func(options *pulsar.ProducerOptions) {
		options.Schema = old
	})
	if err != nil {
		return err
	}
	for _, message := range []pulsar.ProducerMessage{
		{Value: &user{"ann"}},
		{Value: &userWithTown{"ann", "Rome"}, Schema: young},
		{Value: &user{"bob"}},
	} {
		if _, err := producer.Send(context.Background(), &message); err != nil {
			return err
		}
	}
	consumer, err := o.consumer(topic, func(options *pulsar.ConsumerOptions) {
		options.Schema = young
	})
	if err != nil {
		return err
	}
	found := ""
	for range 3 {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		var value userWithTown
		if err := message.GetSchemaValue(&value); err != nil {
			return err
		}
		version := message.SchemaVersion()
		found += fmt.Sprintf("%d:%s:%s ", version[len(version)-1], value.Name, value.Town)
	}
	return wanted(found == "0:ann: 1:ann:Rome 0:bob: ", "%s", found)
}
