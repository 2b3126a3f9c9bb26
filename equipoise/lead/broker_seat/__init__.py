"""Groups that the broker assigns, led by plans that travel in the group's own state: of consumers
(KIP-848) by an extra member, of Kafka Streams (KIP-1071) by the group's settings. An assignor
inside the brokers (``java/broker-assignor``) carries them out.
"""
