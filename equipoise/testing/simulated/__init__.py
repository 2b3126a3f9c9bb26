"""Runs members and workers in one process and in virtual time: event loops (`virtual_loops`),
machines and processes (`machines`), Kafka (`kafka`), and a coordinator in the place of
Faust (`partition_coordinator`).
"""
