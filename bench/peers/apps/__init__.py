"""The same application four times, each the way its system wants it written. Processes: `python -m
bench.peers.apps.tied MODULE ARGUMENTS`.
"""
