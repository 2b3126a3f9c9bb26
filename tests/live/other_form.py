"""A build with another form of the state: the next form, of which this build knows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from equipoise.statemachine import snapshot_forms, snapshots
from equipoise.worker import base_storing

NEXT_FORM = snapshots.FORM + 1


@contextmanager
def other_form() -> Iterator[None]:
    """Until the end of the block this build writes NEXT_FORM: the same parts, behind a new first
    one. It reads this build's form by a step, as builds do. The form of the process changes, so
    nothing of another build may run in it meanwhile.
    """
    to_wire, from_wire = snapshots._state_to_wire, snapshots._state_from_wire

    def written(state: Any) -> list[Any]:
        return ["a part of its own", *to_wire(state)]

    def read(wire: list[Any]) -> Any:
        return from_wire(wire[1:])

    steps = {**snapshot_forms.UPCASTERS, snapshots.FORM: lambda content: ["a part of its own", *content]}
    with ExitStack() as stack:
        for module in (snapshots, base_storing):
            stack.enter_context(mock.patch.object(module, "FORM", NEXT_FORM))
        for module in (snapshots, snapshot_forms):
            stack.enter_context(mock.patch.object(module, "UPCASTERS", steps))
        stack.enter_context(mock.patch.object(snapshots, "_state_to_wire", written))
        stack.enter_context(mock.patch.object(snapshots, "_state_from_wire", read))
        yield
