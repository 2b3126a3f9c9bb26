"""Each form of line is tried with the sample that stands beside it."""

from __future__ import annotations

import pytest

from equipoise.replay.importers.evidence.files import SOURCES, Evidence, ReadFile, read_file
from equipoise.replay.importers.evidence.patterns import Pattern

FORMS = [(source, each) for source, table in SOURCES.items() for each in table]


@pytest.mark.parametrize(("source", "form"), FORMS, ids=[f"{source}-{each.literal}" for source, each in FORMS])
def test_sample_is_read_by_its_own_form_first(source: str, form: Pattern) -> None:
    fits = [each for each in SOURCES[source] if each.literal in form.sample and each.expression.search(form.sample)]
    assert fits[:1] == [form]


@pytest.mark.parametrize(("source", "form"), FORMS, ids=[f"{source}-{each.literal}" for source, each in FORMS])
def test_sample_in_a_log_is_understood(source: str, form: Pattern) -> None:
    found = Evidence(files=[ReadFile(name="x.log")])
    read_file(found, 0, [f"{form.sample}\n".encode()])
    assert (found.files[0].understood, found.files[0].unknown) == (1, 0)
