"""The example in the docstring of `equipoise.member` is a complete program."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import equipoise.member
from equipoise import Member


def example() -> str:
    """The program in the docstring."""
    text = inspect.getdoc(equipoise.member) or ""
    found = re.search(r"::\n\n((?:    .*\n|\n)+)", text)
    assert found is not None
    return textwrap.dedent(found[1])


def test_example_makes_a_member() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "example", "exec"), names)  # noqa: S102  # the example itself
    assert isinstance(names["member"], Member)
    assert names["member"].group == "order-counts"


def test_example_fits_the_page() -> None:
    assert max(len(line) for line in example().splitlines()) <= 96
