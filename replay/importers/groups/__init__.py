"""Groups of a cluster, whatever leads them: read from `__consumer_offsets` into one form."""
