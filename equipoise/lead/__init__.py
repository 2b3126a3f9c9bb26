"""Leading groups that something else carries out: who asks, who carries out, what it costs."""
