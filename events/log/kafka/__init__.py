"""Logs in Kafka topics: what a worker, a member and a reader of ``kafka://host:port[/prefix]``
share.

The extra `kafka` brings the client; it is imported when a connection is made, never before.

==============
===========================================================================================
`settings`      one declaration of a setting for flags, environment and TOML `connection`    how to
reach the brokers: addresses, TLS, SASL `topics`        which topics there are and how each must be
configured `envelope`      the bytes of facts, decisions and checkpoints in them, and the partition
of a group `opening`       topics made, checked and opened; where a log begins ==============
===========================================================================================
"""
