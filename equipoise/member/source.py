"""One source of a processor, where more is to be said of it than its topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from equipoise.events import fields
from equipoise.member.tasks.serdes import Serde, check_serde


def _serde(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_serde(f"Source.{attribute.name}", value)


@attrs.frozen
class Source:
    """A topic that a processor reads. A plain name stands for `Source(name)`.

    `table`: whenever a task begins to run somewhere, it reads this source to the end that it
    has at that moment before the first record of the others, such as a table with which these are
    joined. `key_serde`, `value_serde`: of its records; None: the member's.
    """

    topic: str
    table: bool = attrs.field(default=False, kw_only=True, validator=fields.boolean)
    key_serde: Serde | None = attrs.field(default=None, kw_only=True, validator=_serde)
    value_serde: Serde | None = attrs.field(default=None, kw_only=True, validator=_serde)


Sources = str | Source | Sequence[str | Source]
"""One source, or several."""


def sources_of(given: Sources) -> tuple[Source, ...]:
    """The sources, as `Processor` takes them."""
    several = (given,) if isinstance(given, str | Source) else given
    return tuple(each if isinstance(each, Source) else Source(each) for each in several)
