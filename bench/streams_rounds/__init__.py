"""The recorded scenarios on a real Kafka Streams application, led by its own assignor or by
equipoise (KIP-924).
"""
