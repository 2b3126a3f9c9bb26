"""Docstrings that lack their subject, and functions that name no error, only become fewer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import docstrings
from tools.docstrings import lacks

MOST = {"headless": 158, "raises": 3}
"""Lower them with each that is mended: `python -m tools.docstrings` lists what is left."""


@pytest.mark.parametrize("what", sorted(MOST))
def test_number_of_what_is_left_only_falls(what: str) -> None:
    found = [lack for lack in lacks() if lack.what == what]
    assert len(found) <= MOST[what], "\n".join(f"{lack.place}: {lack.text}" for lack in found)
    assert len(found) == MOST[what], f"there are fewer: lower MOST[{what!r}] to {len(found)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f():\n    """Whether it is so."""', ["headless"]),
        ('def f():\n    """Returns whether it is so."""', []),
        ('class A:\n    """What there is."""', ["headless"]),
        ('class A:\n    """Whatever there is."""', []),
        ("def f():\n    raise InputError('x')", ["raises"]),
        ("def f():\n    '''Raises InputError.'''\n    raise InputError('x')", []),
        ("def f():\n    '''See `g`.'''\n    raise errors.InputError('x')", []),
        ("def _f():\n    raise InputError('x')", []),
        ("'''Each raises InputError.'''\ndef f():\n    raise InputError('x')", []),
        ("class A:\n    def f(self):\n        raise InputError", ["raises"]),
        ("class _A:\n    def f(self):\n        raise InputError", []),
        ("def f():\n    def g():\n        raise InputError\n    return g", []),
        ("@command('x')\ndef f():\n    raise InputError", []),
        ("def f():\n    try:\n        g()\n    except E:\n        raise", []),
    ],
)
def test_what_is_missing_is_found(source: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "ROOT", tmp_path)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "some.py").write_text(source)
    ast.parse(source)
    assert [lack.what for lack in lacks()] == found
