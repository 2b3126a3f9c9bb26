"""`make model` searches `model/*.pml` with SPIN: every configuration to its end, then every rule
switched off. Writes `model/results.json` and the tables of model/README.md.

usage: python -m tests.model [--long]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.model import lease, spin
from tests.model.configurations import BROKEN, CHANGELOG_RULES, COMPARED, LONGER, OWNERS, RULES, SEARCHED, WITHOUT_FENCE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "model" / "results.json"
PAGE = ROOT / "model" / "README.md"
BEGIN, END = "<!-- made by `make model` -->\n", "<!-- end of the model's results -->"


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["", "| searched to the end | states |", "|---|---|"]
    lines += [f"| {name} | {states:,} |" for name, states in results["searched"].items()]
    lines += ["", "| rule switched off | | steps | the shortest sequence that breaks |", "|---|---|---|---|"]
    for rule, (where, text) in {**RULES, **CHANGELOG_RULES}.items():
        path = results["broken"][rule]
        lines.append(f"| {text} | [{where}](../docs/protocol.md#{where.lower()}) | {len(path)} | {'; '.join(path)} |")
    return "\n".join(lines) + "\n\n"


def page_with(results: dict[str, Any], page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(results) + END + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="The model of the protocol, searched.")
    parser.add_argument("--long", action="store_true", help="larger configurations too: minutes, and up to 10 GB")
    given = parser.parse_args()
    began = time.monotonic()
    failed = False
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = {"searched": results.get("searched", {}), "compared": {}, "broken": {}}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        whole = [(name, spin.lease(each, folder)) for name, each in (SEARCHED | (LONGER if given.long else {})).items()]
        whole += [(f"changelog: {name}", spin.changelog(each, folder)) for name, each in OWNERS.items()]
        for name, found in whole:
            failed |= found.path is not None
            print(f"{name}: {found.states:,} states, {found.seconds:.1f} s", "" if found.path is None else f"BROKEN: {'; '.join(found.path)}")
            known["searched"][name] = found.states
        for name, each in COMPARED.items():
            known["compared"][name] = spin.lease(each, folder, quick=True).states
            same = known["compared"][name] == lease.states(each)
            failed |= not same
            print(f"{name}: {known['compared'][name]:,} states, in Python {'as many' if same else 'ANOTHER NUMBER'}", flush=True)
        broken = {rule: spin.lease(each, folder) for rule, each in BROKEN.items()}
        broken |= {rule: spin.changelog(each, folder) for rule, each in WITHOUT_FENCE.items()}
        for rule, found in broken.items():
            failed |= found.path is None
            known["broken"][rule] = found.path or ()
            print(f"without {rule}: " + ("NOTHING FOUND" if found.path is None else f"{len(found.path)} steps, {found.states:,} states"))
    print(f"{time.monotonic() - began:.0f} s")
    if not failed:
        wanted = [*SEARCHED, *LONGER, *(f"changelog: {name}" for name in OWNERS)]
        known["searched"] = {name: known["searched"][name] for name in wanted if name in known["searched"]}
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        PAGE.write_text(page_with(known, PAGE.read_text()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
