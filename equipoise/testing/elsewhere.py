"""``python -m equipoise.testing.elsewhere MODULE CLASS``: prints the plans of an assignor, for
`hash_seeds_play_no_part` to compare.
"""

from __future__ import annotations

import importlib
import sys

import click

from equipoise.testing.contract import plans_of

PLANS = 30

if __name__ == "__main__":
    module, name = sys.argv[1:]
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    for plan in plans_of(found(), PLANS):  # type: ignore[operator]  # an assignor's class
        click.echo(plan)
