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


def test_example_defines_a_topology_and_a_handler_that_a_member_takes() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "example", "exec"), names)  # noqa: S102  # the example itself
    member = Member("g", "m1", names["count"], names["TOPOLOGY"], guarantee="exactly_once")
    assert member.group == "g"
    assert inspect.iscoroutinefunction(names["main"])


def test_example_fits_the_page() -> None:
    assert max(len(line) for line in example().splitlines()) <= 96
