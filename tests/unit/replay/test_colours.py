"""Members' colours differ from each other and from the red of alarms, for the colour-blind, too."""

from __future__ import annotations

import itertools
import math

import pytest

from equipoise.replay.drawing.colours import _FIRST, colour_numbers, colour_rules, is_light, member_colour

SIGHT = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Matrices of Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB."""
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)
LEAST_DISTANCE = 15
"""In CIE Lab. Two of 2.3 are told apart side by side; bars lie far from their legend."""
LEAST_CONTRAST = 1.7


def linear(colour: str) -> tuple[float, ...]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def times(matrix: tuple[tuple[float, ...], ...], vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def luminance(colour: str) -> float:
    return times(TO_XYZ, linear(colour))[1]


def lab(seen: tuple[float, ...]) -> tuple[float, float, float]:
    xyz = times(TO_XYZ, tuple(min(1.0, max(0.0, part)) for part in seen))
    parts = [part / white for part, white in zip(xyz, WHITE, strict=True)]
    x, y, z = (math.cbrt(part) if part > 0.008856 else 7.787 * part + 16 / 116 for part in parts)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHT)
def test_first_colours_are_told_apart_by(sight: str) -> None:
    seen = {colour: lab(times(SIGHT[sight], linear(colour))) for colour in (*_FIRST, "#d92d3a")}
    near = [(first, second) for first, second in itertools.combinations(seen, 2) if math.dist(seen[first], seen[second]) < LEAST_DISTANCE]
    assert near == []


@pytest.mark.parametrize("card", ["#ffffff", "#1a2029"])
def test_colours_stand_out_from_the_page(card: str) -> None:
    assert f"--card: {card}" in colour_rules()
    for number in range(40):
        high, low = sorted((luminance(member_colour(number)), luminance(card)), reverse=True)
        assert (high + 0.05) / (low + 0.05) > LEAST_CONTRAST, member_colour(number)


def test_member_has_one_colour_wherever_it_is_shown_unless_another_has_it() -> None:
    names = [f"orders-{number}" for number in range(30)]
    numbers = colour_numbers(names)
    assert len(set(numbers.values())) == 30
    assert sorted(numbers[name] for name in names[:10]) == list(range(10)), "ten members have the ten that differ most"
    alone = {name: colour_numbers([name])[name] for name in names}
    assert len(set(alone.values())) > 5
    for name, number in numbers.items():
        assert number == alone[name] or alone[name] in [numbers[other] for other in names[: names.index(name)]]
    assert colour_numbers(["a"]) == {"a": 7}, "the same on every machine"


def test_text_on_a_member_is_black_or_white_whichever_differs_more() -> None:
    for number in range(40):
        colour = member_colour(number)
        on_white, on_black = 1.05 / (luminance(colour) + 0.05), (luminance(colour) + 0.05) / (luminance("#10151c") + 0.05)
        assert max(on_white, on_black) > 4.4
        assert (on_black if is_light(colour) else on_white) >= 0.95 * max(on_white, on_black), colour
