"""The live console: what a worker's groups do now, why, and what would follow from a change, as
pages on the worker's HTTP port. It only reads.

- `pages`: the routes, and who may see them
- `admission`: loopback, token, or a proxy that authenticates; headers of every answer
- `recent`: what happened to each group lately, in bounded memory
- `stream`: decisions as they are made, as server-sent events
- `documents`, `progress`, `troubles`: a group now, what it waits for, what is wrong with it
- `questions`, `answering`: explanations and what-if, in a process beside the worker
- `static`: the page itself

docs/console.md says how it is used.
"""
