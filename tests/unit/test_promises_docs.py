"""docs/promises.md: no section of a design document is missing, each promise is shown or explained,
everything named exists.
"""

from __future__ import annotations

import pytest

from tests.pages import check_place, places_of, read_page, rows_of

PAGE = read_page("promises.md")
SECTION, PROMISE, CODE, SHOWN, OTHERWISE = range(5)
DOCUMENTS = {
    "KIP-441: smooth scaling out for Kafka Streams": [
        "Overview",
        "Overview (removed from the draft)",
        "Parameters",
        "Ranking algorithm",
        "Assignment algorithm",
        "Balance evaluation algorithm",
        "Rebalance metadata",
    ],
    "Learner tasks: smooth scaling by explicit readiness": [
        "Motivation",
        "New stream task type",
        "Stop-the-world effect recap",
        "Scale up running application",
        "Scaling up from empty group",
        "Normal scale down",
        "Optimizations: stateful and stateless tasks",
        "Public interfaces",
        "Compatibility",
    ],
    "Incremental cooperative rebalancing (KIP-415 and KIP-429)": [
        "Incremental cooperative rebalancing",
        "Design I",
        "Design II",
        "Design III",
        "Protocol option",
        "Summary",
        "References",
    ],
    "KIP-925: rack aware task assignment for Kafka Streams": [
        "2 Motivation",
        "3 Current task assignment logic",
        "4 Design",
        "4.A Min-cost flow problem",
        "4.A.I Algorithm",
        "4.B.I Min cost with unbalanced sub-topology",
        "4.B.II Min cost with balanced sub-topology",
        "4.B.III Stability",
        "4.C Standby tasks",
        "4.C.I Balance reliability over cost",
        "4.C.II Prefer reliability and then find optimal cost",
        "4.C.III Summary",
        "4.D Rack information and tags",
        "4.D.I Choose a default one",
        "4.D.II Enforce",
        "4.D.III Check but do not enforce",
        "4.D.IV Summary",
        "4.E Stateless tasks",
        "4 Public interfaces",
        "5 Compatibility",
        "6 Test plan",
    ],
    "KIP-169: lag-aware partition assignment strategy": [
        "Motivation",
        "Public interfaces",
        "Proposed changes",
        "Lag",
        "Algorithm",
        "Algorithm, step 1",
        "Algorithm, step 2",
        "Obtaining consumer group offsets",
        "Prototype implementation",
        "Example",
        "Compatibility",
        "Rejected alternatives",
    ],
}
"""Headings of the documents' tables, and the sections that promise something, in their order."""
ROWS = [row for row in rows_of(PAGE) if row.section in DOCUMENTS]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_sections_have_a_row(document: str) -> None:
    assert list(dict.fromkeys(row.cells[SECTION] for row in ROWS if row.section == document)) == DOCUMENTS[document]


def test_promise_is_shown_or_explained() -> None:
    assert [row.cells for row in ROWS if len(row.cells) != 5] == []
    for row in ROWS:
        *_, shown, otherwise = row.cells
        assert any(place.startswith("tests/") for place in places_of(shown)) or otherwise.startswith(("No promise", "*Not done")), row
        assert places_of(row.cells[CODE]) or row.cells[CODE] == "-", row


@pytest.mark.parametrize("place", places_of(PAGE))
def test_tests_of_a_promise_exist(place: str) -> None:
    check_place(place)


def test_lines_are_short_enough_to_read_anywhere() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > 100 and not line.startswith("|")] == []
