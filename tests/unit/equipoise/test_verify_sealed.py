"""`equipoise verify` on what `equipoise what-if --to` wrote: equal bytes under every hash seed, and
no byte of them can change unnoticed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main

CHANGES = 25
TABLE_LEAF, INDEX_LEAF = 0x0D, 0x0A


def verified(path: Path) -> Result:
    return CliRunner().invoke(main, ["verify", "--json", str(path)])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same simulation of a recorded run, written under two hash seeds."""
    folder = tmp_path_factory.mktemp("simulated")
    recorded = folder / "recorded.db"
    assert CliRunner().invoke(main, ["import", "kafka-streams", "rolling", "--to", str(recorded)]).exit_code == 0
    paths = []
    for hash_seed in ("1", "2"):
        path = folder / f"{hash_seed}.db"
        command = [sys.executable, "-m", "equipoise", "what-if", str(recorded), "--to", str(path)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
        paths.append(path)
    return paths


@pytest.mark.slow
def test_files_do_not_depend_on_the_hash_seed(simulated: list[Path]) -> None:
    one, two = simulated
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_changed_byte_is_found_with_its_offset(simulated: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    sound = simulated[0].read_bytes()
    path.write_bytes(sound)
    assert verified(path).exit_code == 0
    draw = random.Random("which bytes, and what they become")
    for _ in range(CHANGES):
        at = draw.randrange(len(sound))
        changed = bytearray(sound)
        changed[at] ^= draw.randrange(1, 256)
        path.write_bytes(changed)
        result = verified(path)
        assert result.exit_code in (1, 2), f"byte {at} is {changed[at]} in the place of {sound[at]}"
        assert "offset" in result.output
        assert result.stderr.count("\n") == (result.exit_code == 2)


@pytest.mark.slow
def test_changed_byte_that_no_record_uses_is_reported(simulated: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    sound = simulated[0].read_bytes()
    found = []
    for page in range(4096, len(sound), 4096):
        free = page + 8 + 2 * int.from_bytes(sound[page + 3 : page + 5], "big")  # between a leaf's cell pointers and its cells
        cells = page + int.from_bytes(sound[page + 5 : page + 7], "big")
        if sound[page] in (TABLE_LEAF, INDEX_LEAF) and free < cells:
            found.append(free)
    for at in (found[0], found[len(found) // 2], found[-1]):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        result = verified(path)
        assert result.exit_code == 2
        told = json.loads(result.stdout)
        facts = sum(group["facts"] for group in told["groups"]) + 1
        assert (told["verdict"], told["offset"]) == ("cannot verify", facts)  # every record was read before
        assert f"offset {facts}: all records are sound, but bytes outside them differ from the seal" in result.stderr
