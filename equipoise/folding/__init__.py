"""Following a partition of the log in Kafka: its facts and decisions in order, from a checkpoint,
and what is done when its end is lost. The worker, the member and the operator's commands fold so.
"""
