// A member of a consumer group with a client of Go: LIBRARY STRATEGY BROKER GROUP TOPIC. It reads until it is killed.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

type reads struct{}

func (reads) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reads) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (reads) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-claim.Messages():
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	library, strategy, broker, group, topic := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	switch library {
	case "franz-go":
		balancers := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
			"cooperative-sticky": kgo.CooperativeStickyBalancer()}
		client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(balancers[strategy]),
			kgo.HeartbeatInterval(500*time.Millisecond), kgo.SessionTimeout(6*time.Second))
		if err != nil {
			log.Fatal(err)
		}
		for {
			client.PollFetches(context.Background())
		}
	case "sarama":
		config := sarama.NewConfig()
		config.Version = sarama.V2_8_0_0
		config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
		config.Consumer.Group.Session.Timeout = 6 * time.Second
		strategies := map[string]sarama.BalanceStrategy{"range": sarama.NewBalanceStrategyRange(), "roundrobin": sarama.NewBalanceStrategyRoundRobin(),
			"sticky": sarama.NewBalanceStrategySticky()}
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[strategy]}
		client, err := sarama.NewConsumerGroup([]string{broker}, group, config)
		if err != nil {
			log.Fatal(err)
		}
		for {
			if err := client.Consume(context.Background(), []string{topic}, reads{}); err != nil {
				log.Print(err)
				time.Sleep(time.Second)
			}
		}
	case "kafka-go":
		balancers := map[string]kafka.GroupBalancer{"range": kafka.RangeGroupBalancer{}, "roundrobin": kafka.RoundRobinGroupBalancer{}}
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{broker}, GroupID: group, Topic: topic,
			GroupBalancers: []kafka.GroupBalancer{balancers[strategy]}, ErrorLogger: kafka.LoggerFunc(log.Printf), HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: 6 * time.Second})
		for {
			if _, err := reader.ReadMessage(context.Background()); err != nil {
				log.Print(err)
				time.Sleep(time.Second)
			}
		}
	}
}
