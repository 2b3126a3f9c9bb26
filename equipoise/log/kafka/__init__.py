"""Logs in Kafka topics: what a worker, a member and a reader of ``kafka://host:port[/prefix]``
share.

The extra `kafka` installs the client, which is imported when a connection is made.

::

    log_topics    the topics of a log and their required configuration
    envelope      the bytes of facts and decisions, and the partition of a group
    log_opening   makes, checks and opens topics; where a log begins
"""
