"""Assignors as plugins of Kafka clients. Only these modules of `assignors` use network, clock and
threads.
"""
