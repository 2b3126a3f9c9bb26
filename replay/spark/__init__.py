"""The offline commands over many groups on Spark. Each job calls a plain function of one group for
every group.

A job reads each file of an archive once, in columns. Spark's shuffle brings the rows to the tasks
that fold one group after the other (`groups.over_groups`). The driver writes the results: executors
may have other folders.
"""
