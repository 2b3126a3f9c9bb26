"""Predicts the cost of a change of a running group, as intervals: many simulated runs from the
group as it is now, with what is uncertain drawn for each.

`equipoise.replay.prediction.present`: the group as it is now. `planned_change`: what is to be done.
`habits`: how fast this group restores, writes and hands over, from its log. `predict`: the runs,
their intervals, and what they are most sensitive to.
"""
