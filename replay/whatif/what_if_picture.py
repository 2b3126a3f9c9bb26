"""The costs of each configuration as one SVG picture: two planes, each of two objectives, lower
left is better.

Each plane joins the points that no other beats there; the list below marks the Pareto front over
all four objectives. The group's own configuration has a ring and the range of its runs; a cross
marks the recording.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import attrs

from equipoise.replay.drawing.colours import colour_rules, member_colour
from equipoise.replay.drawing.svg import MARK, cut, label, markup, short
from equipoise.replay.whatif.advice import Advice, pareto_front
from equipoise.replay.whatif.evaluate import Outcome, WhatIf

WIDTH = 920
_PLANE = 300
"""Height of a plane in pixels."""
_LEFTS = (78, 548)
_WIDE = 350
_TOP = 88
_MOST_NAMES = 14
"""Most outcomes named below the planes; of more, those of the Pareto front come first."""

_RULES = """
text { font: 10.5px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
text.title { font-size: 14px; font-weight: 600; fill: var(--ink); }
text.head { font-weight: 600; }
text.name { font-size: 10px; fill: var(--ink); }
text.in { font-size: 8.5px; font-weight: 600; fill: #fff; text-anchor: middle; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.line { stroke: var(--line); }
.front { fill: none; stroke: var(--ink); stroke-dasharray: 3 3; }
.range { stroke: var(--soft); stroke-width: 1.5; }
.cross { stroke: var(--alarm); stroke-width: 2; }
.own { fill: none; stroke: var(--ink); stroke-width: 2; }
"""


@attrs.frozen(kw_only=True)
class _Axis:
    metric: str
    title: str


_PLANES = (
    (
        _Axis(metric="records_restored", title="records restored"),
        _Axis(metric="unavailable_task_seconds", title="unavailability, task-seconds"),
    ),
    (
        _Axis(metric="rebalances", title="rebalances"),
        _Axis(metric="imbalance_task_seconds", title="imbalance, task-seconds"),
    ),
)


def render_what_if(answer: WhatIf, advice: Advice) -> str:
    """Returns the SVG as text. Equal answers give equal pictures. Outcomes with an error are not
    drawn.
    """
    led = [each for each in (answer.factual, *answer.outcomes) if each.metrics is not None]
    best = pareto_front(answer)
    order = sorted(led, key=lambda each: (each is not answer.factual, each.configuration.name not in best))
    numbers = {each.configuration.name: number for number, each in enumerate(order)}
    parts: list[str] = []
    for left, (across, up) in zip(_LEFTS, _PLANES, strict=True):
        parts += _plane(answer, led, best, numbers, left, across, up)
    y = _TOP + _PLANE + 52
    for each in order[:_MOST_NAMES]:
        name = each.configuration.name
        mark = "  (nothing beats it)" if name in best else ""
        parts.append(f'<circle cx="84" cy="{y - 3.5:g}" r="7" fill="{member_colour(numbers[name])}"/>')
        parts += [label(84, y - 0.5, str(numbers[name]), "in"), label(98, y, markup(cut(name, WIDTH - 110 - 6.6 * len(mark), 6.6) + mark), "name")]
        y += 17
    if len(order) > _MOST_NAMES:
        parts.append(label(98, y, f"and {len(order) - _MOST_NAMES:,} more", "name"))
        y += 17
    title = markup(f"{answer.group}: what other settings would have cost")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" role="img">',
            MARK,
            f"<title>{title}</title>",
            f"<style>\n{colour_rules()}{_RULES.lstrip()}</style>",
            '<rect width="100%" height="100%" rx="8" fill="var(--card)"/>',
            label(12, 21, title, "title"),
            *(label(12, 38 + 13 * number, markup(line), "name") for number, line in enumerate(textwrap.wrap(advice.line, 165)[:2])),
            *parts,
            "</svg>",
            "",
        ]
    )


def _plane(answer: WhatIf, led: Sequence[Outcome], best: Sequence[str], numbers: dict[str, int], left: int, across: _Axis, up: _Axis) -> list[str]:
    points = {each.configuration.name: (_value(each, across.metric), _value(each, up.metric)) for each in led}
    known = {each.metric: each for each in answer.fidelity}
    recorded = (known[across.metric].recorded, known[up.metric].recorded)
    x = _scale([at for at, _ in points.values()] + [recorded[0] or 0.0], left, left + _WIDE)
    y = _scale([at for _, at in points.values()] + [recorded[1] or 0.0], _TOP + _PLANE, _TOP)
    parts = [f'<path d="M{left} {_TOP}V{_TOP + _PLANE}H{left + _WIDE}" fill="none" class="line"/>']
    parts += [label(left, _TOP - 8, up.title, "head"), label(left + _WIDE, _TOP + _PLANE + 30, f"{across.title} →", "head end")]
    for value in _ticks([at for at, _ in points.values()] + [recorded[0] or 0.0]):
        parts.append(label(x(value), _TOP + _PLANE + 14, _written(value), "middle"))
    for value in _ticks([at for _, at in points.values()] + [recorded[1] or 0.0]):
        parts.append(f'<path d="M{left} {short(y(value))}H{left + _WIDE}" class="line"/>')
        parts.append(label(left - 6, y(value) + 3.5, _written(value), "end"))
    line = _front_of_plane([points[name] for name in best])
    parts.append(f'<path d="M{" L".join(f"{short(x(a))} {short(y(b))}" for a, b in line)}" class="front"/>')
    own = known[up.metric]
    if own.low is not None and own.high is not None and answer.factual.metrics is not None and answer.metrics_source == "measured":
        at = short(x(points[answer.factual.configuration.name][0]))
        parts.append(f'<path d="M{at} {short(y(own.low))}V{short(y(own.high))}" class="range"/>')
    if answer.metrics_source == "measured" and recorded[0] is not None and recorded[1] is not None:
        a, b = x(recorded[0]), y(recorded[1])
        parts.append(f'<path d="M{short(a - 4)} {short(b - 4)}l8 8m-8 0l8-8" class="cross"/>')
        parts.append(label(a + 8, b + 3.5, "recorded", "name") if a < left + _WIDE - 60 else label(a - 8, b + 3.5, "recorded", "name end"))
    for name in sorted(points, key=lambda name: (name in best, name)):
        a, b = x(points[name][0]), y(points[name][1])
        parts.append(f'<circle cx="{short(a)}" cy="{short(b)}" r="7" fill="{member_colour(numbers[name])}"/>')
        if name == answer.factual.configuration.name:
            parts.append(f'<circle cx="{short(a)}" cy="{short(b)}" r="10" class="own"/>')
        parts.append(label(a, b + 3, str(numbers[name]), "in"))
    return parts


def _front_of_plane(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points that no other beats in both directions, from left to right."""
    found: list[tuple[float, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _value(each: Outcome, metric: str) -> float:
    return float(getattr(each.metrics, metric) or 0.0)


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Returns a linear scale from zero to a little over the largest value."""
    most = max(values) * 1.08 or 1.0
    return lambda value: start + (end - start) * value / most


def _ticks(values: Sequence[float]) -> list[float]:
    """Returns about four round numbers, zero included."""
    most = max(values) or 1.0
    step = 10.0 ** len(f"{int(most / 4)}") / 10
    while most / step > 5:
        step *= 2 if f"{step:.0e}"[0] != "2" else 2.5
    return [number * step for number in range(int(most / step) + 1)]


def _written(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value:,g}" if value < 1 else f"{value:,.0f}"
