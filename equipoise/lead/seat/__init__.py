"""The leader's seat of a classic consumer group: equipoise joins the group with clients that know
nothing of it, is its leader, assigns everything to the others and takes nothing.
"""
