"""Forms of a group's state that are read but no longer written: one step per form, applied to the
content of a snapshot before any class reads it (docs/decisions/0023-bases.md).

To change the form: add the step from it here, raise `equipoise.statemachine.snapshots.FORM`, and
keep a snapshot of the past form under ``tests/data/snapshots``. A step gives each part that the
past form lacks the value that it has in a group which never used it. So a build may remember more
only from a fact on that earlier builds do not write (a new kind, version or setting). Then a state
that was read from a past form decides what the same state decides that was folded from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.events import codec
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings

Content = list[Any]
"""The parts of a state, in the order of `snapshots`."""

_CONFIG, _BEHIND, _NUMBERS, _MEMBERS, _FENCED, _WAITING, _NONCES = 2, 9, 10, 11, 15, 19, 21
_TIMERS_OF_2 = 24
_SPEED_OF_1, _WARMUP_OF_1 = 6, 12


def _from_1(content: Content) -> Content:
    """Form 2 remembers crashes, movements that wait for a slot, slot back-offs, measured speeds,
    and the lease margin of a fenced incarnation. That margin is taken to be `max_step_ms`, the
    least that an incarnation may join with.
    """
    config = None if content[_CONFIG] is None else codec.decode(*content[_CONFIG])
    margin_ms = (config.knobs if isinstance(config, GroupConfigured) else GroupSettings()).max_step_ms
    content[_MEMBERS] = [_member_from_1(list(member)) for member in content[_MEMBERS]]
    content[_FENCED] = [[*fenced[:3], margin_ms, *fenced[3:]] for fenced in content[_FENCED]]
    content[_WAITING] = [content[_WAITING], {}]
    return [*content[: _NONCES + 1], {}, *content[_NONCES + 1 :]]


def _member_from_1(member: Content) -> Content:
    speed = member[_SPEED_OF_1]
    member[_SPEED_OF_1] = [speed, speed, None]
    member[_WARMUP_OF_1] = {
        task: [best_lag, improved_ms, caught_up, best_lag, improved_ms] for task, (best_lag, improved_ms, caught_up) in member[_WARMUP_OF_1].items()
    }
    return [member[0], ["word_or_lag", None], *member[1:]]


def _from_2(content: Content) -> Content:
    """Form 3 remembers observed source lags, that a group waits for them, and preparations."""
    content[_BEHIND] = [content[_BEHIND], {}]
    content[_MEMBERS] = [[*member[:7], [{}, []], *member[7:]] for member in content[_MEMBERS]]
    content[_TIMERS_OF_2] = [*content[_TIMERS_OF_2], False]
    return content


def _from_3(content: Content) -> Content:
    """Form 4 has a configuration with `join_delay_ms`; the codec reads one without."""
    return content


def _from_4(content: Content) -> Content:
    """Form 5 numbers configurations, from the first one that names what it was made from."""
    content[_NUMBERS] = [*content[_NUMBERS], 0]
    return content


UPCASTERS: Mapping[int, Callable[[Content], Content]] = {1: _from_1, 2: _from_2, 3: _from_3, 4: _from_4}
"""Form -> the step to the next one."""


def upcast(form: int, content: Content, newest: int) -> Content:
    """The content in form `newest`, from that of an earlier form. Raises KeyError for a form that
    this build does not read.
    """
    while form < newest:
        content = UPCASTERS[form](content)
        form += 1
    return content
