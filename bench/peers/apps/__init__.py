"""The same application four times, each in the idiom of its system. Processes: `python -m
bench.peers.apps.tied MODULE ARGUMENTS`.
"""
