"""Assignors plugged into clients of Kafka: here, and only here in this room, is there a network, a
clock and a thread.
"""
