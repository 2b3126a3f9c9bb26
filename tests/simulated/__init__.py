"""The deployed hosts over simulated brokers in virtual time: one process, one seed. Run
`python -m tests.simulated --help`.
"""
