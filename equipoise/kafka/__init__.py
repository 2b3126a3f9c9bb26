"""Speaks to Kafka, for all who do: a narrow interface of clients, aiokafka behind it, and groups.

::

    client               what hosts use of consumers, producers and an admin client
    connection           how to reach the brokers: addresses, TLS, SASL
    declared_settings    one declaration of a setting for flags, environment and TOML
    consumer_groups      groups of a cluster, and one: its members, described and removed
"""
