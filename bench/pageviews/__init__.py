"""The application of examples/pageviews.py beside the same in Kafka Streams."""
