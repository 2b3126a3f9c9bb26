"""Refuses a second copy of the packages whose folders stand at the top of the repository."""

from __future__ import annotations


def check_package_name(name: str, expected: str) -> None:
    """Called by those packages as they are imported.

    Imported as `events` from a working directory that is the repository, every class would exist
    twice, and a record of the one kind would not equal one of the other.

    Raises:
        ImportError: `name` is not `expected`.
    """
    if name != expected:
        raise ImportError(f"{name!r} is not imported by this name; import {expected!r}")
