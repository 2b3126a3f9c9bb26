"""What operators do to a live group. No worker answers these requests: each reads the log itself.

- `follower`: reads a log in Kafka and folds its groups, for `equipoise status`
- `live_group`: one group of a live log: fold it, append a fact, wait for a worker's answer
- `leaving`: asks members to leave and follows them until they are gone (`equipoise scale-down`)
- `group_settings`: compares, changes and previews the settings of a group (`equipoise configure`)
"""
