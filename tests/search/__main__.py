"""`python -m tests.search` runs every search, then breaks each rule in turn and prints the shortest
sequence to two owners.
"""

from __future__ import annotations

import sys

from tests.search.catalogue import BROKEN, LONG, WHOLE, run


def main() -> int:
    failed = False
    for name, search in {**WHOLE, **LONG}.items():
        found = run(search)
        if found.path is None:
            print(f"{name}: exhausted, {found.states} states, {found.transitions} transitions, no two owners", flush=True)
        else:
            failed = True
            print(f"{name}: TWO OWNERS of {found.task}: {', '.join(found.path)}", flush=True)
    for rule, search in BROKEN.items():
        found = run(search)
        if found.path is None:
            failed = True
            print(f'without "{rule}": NOTHING FOUND in {found.states} states', flush=True)
        else:
            print(f'without "{rule}": two owners of {found.task} after {len(found.path)} steps: {", ".join(found.path)}', flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
