"""Finds how many members a group needs, by what they reported: arrivals and processing rates of
its tasks, the skew over them, and what it costs to change the number.

`equipoise.replay.sizing.demand`: what the log shows. `size`: member counts, their lags, costs, and
the recommendation.
"""
