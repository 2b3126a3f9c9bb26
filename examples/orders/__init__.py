"""Orders, counted per customer: an application that equipoise leads, the producer of its input, and
an independent recount.

::

    python -m examples.orders topics      # creates orders, orders-state and orders-counts
    python -m examples.orders count --member m1 --state state    # one member; start many
    python -m examples.orders produce --orders 100000 --per-second 2000
    python -m examples.orders recount     # exits with 1 when an order is lost or counted twice
"""
