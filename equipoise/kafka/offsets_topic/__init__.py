"""Records of `__consumer_offsets`, as the group coordinators of brokers write them: for every kind
of group, with the partitions or tasks that its members have.
"""
