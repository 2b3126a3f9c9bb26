"""A storm: a whole deployment of the sample application on three real brokers, under load, while
things are killed, paused, wiped and doubled.

::

    make storm SEED=7 FAULTS=100 GUARANTEE=exactly_once

==============
===========================================================================================================
`faults`        what may happen, and a plan of it that a seed gives `deployment`    three brokers,
two workers, members as processes, and how each fault is done to them `watch`         the group as
its log tells it, followed from the outside `transactions`  which are open at this moment, so that a
member can be stopped in the middle of one `checks`        what must hold in the end `evidence`
what is kept when something does not `run`           a storm from its start to its judgement
==============
===========================================================================================================
"""
