"""`verify` over many groups: one row for each, with its verdict and its first divergence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from equipoise.replay.spark.groups import Unit, over_groups, problem_of, strict_files_of
from equipoise.replay.verification import Verdict, Verification, verify

COLUMNS = (
    ("group", "string"),
    ("location", "string"),
    ("verdict", "string"),
    ("records", "int64"),
    ("facts", "int64"),
    ("decisions_identical", "int64"),
    ("checkpoints_identical", "int64"),
    ("checkpoints_not_compared", "int64"),
    ("repeated", "int64"),
    ("not_yet_written", "int64"),
    ("offset", "int64"),
    ("problem", "string"),
    ("document", "string"),
)
"""`offset`: where it diverges, or cannot be verified any further. `document`: output of ``equipoise
verify --json``.
"""


def verify_group(unit: Unit) -> dict[str, Any]:
    """Verifies one group and returns its row."""
    try:
        return row_of(unit, verify(unit.entries()))
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        return failed(unit, error)


def failed(unit: Unit, error: Exception) -> dict[str, Any]:
    """Returns the row of a group that has no answer."""
    return {**dict.fromkeys(name for name, _ in COLUMNS), **_head(unit), "verdict": Verdict.CANNOT_VERIFY.value, "problem": problem_of(error)}


def row_of(unit: Unit, verification: Verification) -> dict[str, Any]:
    """Returns a verification of one group as a row."""
    problem = next(iter(verification.problems), None)
    row: dict[str, Any] = {**_head(unit), "verdict": verification.verdict.value, "records": verification.records}
    for group in verification.groups:
        row |= {
            "facts": group.facts,
            "decisions_identical": group.compared,
            "checkpoints_identical": group.checkpoints,
            "checkpoints_not_compared": group.not_compared,
            "repeated": group.repeated,
            "not_yet_written": group.not_yet_written,
            "offset": group.offset,
            "problem": problem or (group.divergence.problem if group.divergence is not None else None),
        }
    if not verification.groups or row["offset"] is None:
        row |= {"offset": verification.offset, "problem": problem or row.get("problem")}
    document = json.dumps(verification.document(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return {**dict.fromkeys(name for name, _ in COLUMNS), **row, "document": document}


def _head(unit: Unit) -> dict[str, Any]:
    return {"group": unit.group, "location": unit.location}


def schema() -> Any:
    """Returns the pyarrow schema of the rows."""
    import pyarrow as pa

    return pa.schema(list(COLUMNS))


def spark_verify(spark: Any, units: Sequence[Unit]) -> Any:
    """Returns a DataFrame with one row for each unit."""
    return over_groups(spark, units, verify_group, schema(), strict_files_of(units))
