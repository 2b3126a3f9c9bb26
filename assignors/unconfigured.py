"""The assignor of a group that nobody has configured. Members name it, and have no solver: so it is
written down, and a test compares it with the registry.
"""

ASSIGNOR = "high_availability"
BEHAVIOUR_VERSION = 3
SOLVER = "ortools-9.15.6755"
