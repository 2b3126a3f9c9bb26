"""What workers of Faust say beside Faust's own metadata."""

from __future__ import annotations

import json

import pytest
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata

from equipoise.faust.report import FIELD, Report, Told, report_in, told_in, with_report, with_told

STOCK = ClientMetadata(assignment=ClientAssignment(actives={"in": [0]}, standbys={}), url="http://w1:6066", changelog_distribution={}).dumps()
REPORT = Report(
    worker="w1-1c9a6451",
    generation=7,
    group=("w1-1c9a6451", "w2"),
    asked=3,
    is_current=False,
    offsets={"orders-changelog": {0: 12, 11: 4}},
)


def test_report_is_read_as_it_was_written() -> None:
    assert report_in(with_report(STOCK, REPORT)) == REPORT


def test_told_is_read_as_it_was_written() -> None:
    told = Told(group=("w1", "w2"), warmups=(("orders-changelog", 3),), acceptable_lag=10_000)
    assert told_in(with_told(STOCK, told)) == told


def test_metadata_of_stock_worker_has_no_report() -> None:
    assert report_in(STOCK) is None
    assert told_in(STOCK) is None


def test_stock_assignor_reads_metadata_with_report() -> None:
    read = ClientMetadata.loads(with_report(STOCK, REPORT))
    assert read.assignment.actives == {"in": [0]}
    assert read.url == "http://w1:6066"


def test_report_of_thousand_partitions_is_small() -> None:
    report = Report(worker="w", offsets={f"table-{number}-changelog": {each: 100_000 + each * 17 for each in range(1_000)} for number in range(4)})
    assert len(with_report(STOCK, report)) < 31_000


def test_report_of_another_version_is_refused() -> None:
    import base64
    import zlib

    document = json.loads(STOCK) | {FIELD: base64.b64encode(zlib.compress(b'{"version":2}')).decode()}
    with pytest.raises(ValueError, match="version 2"):
        report_in(json.dumps(document).encode())
