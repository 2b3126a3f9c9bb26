"""Runs members and workers in one process and in virtual time: event loops (`virtual_loops`),
machines and processes (`machines`), Kafka (`kafka`), and the deployed worker (`worker`).
"""
