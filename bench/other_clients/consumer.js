// A member of a consumer group with KafkaJS: BROKER GROUP TOPIC. It reads until it is killed.
const { Kafka, logLevel } = require('kafkajs')

const [broker, groupId, topic] = process.argv.slice(2)
const consumer = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR }).consumer({ groupId })
consumer.connect()
  .then(() => consumer.subscribe({ topic }))
  .then(() => consumer.run({ eachMessage: async () => {} }))
