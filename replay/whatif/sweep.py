"""Configurations to try, from a grid or a TOML document.

::

    # Six, named "max_warmups=1 num_standbys=0" and so on:
    grid({"max_warmups": [1, 2, 4], "num_standbys": [0, 1]})

A TOML document holds one configuration, a grid, or several configurations::

    name = "calm"                    # default: the file's name
    assignor = "high_availability"
    announce_closes = true
    [knobs]
    max_warmups = 1

    [sweep]                          # a grid; [knobs] and the rest apply to all of it
    max_warmups = [1, 2, 4]

    [[configuration]]                # several, each with a name, over the values above
    name = "bold"
    knobs = { max_warmups = 20 }
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.replay.whatif.evaluate import Configuration

MOST_CONFIGURATIONS = 1_000
_OF_THE_LEADER = ("assignor", "announce_closes", "carrier", "behaviour_version")
"""Dimensions that are not settings of the group."""
_KEYS = ("name", *_OF_THE_LEADER, "knobs", "sweep", "configuration")


def grid(dimensions: Mapping[str, Sequence[Any]], base: Configuration | None = None) -> list[Configuration]:
    """Returns every combination of these values over `base`, the last dimension varying fastest. A
    dimension is a setting, ``options.NAME``, ``assignor``, ``behaviour_version``,
    ``announce_closes`` or ``carrier``.
    Raises InputError for a dimension without values and for more than MOST_CONFIGURATIONS
    combinations.
    """
    number = 1
    for name, values in dimensions.items():
        if not values:
            raise InputError(f"sweep: {name} has no values; name one or more")
        number *= len(values)
    if number > MOST_CONFIGURATIONS:
        raise InputError(f"sweep: {number:,} combinations; take fewer values, at most {MOST_CONFIGURATIONS:,} combinations are tried at once")
    found = []
    for values in itertools.product(*dimensions.values()):
        chosen = dict(zip(dimensions, values, strict=True))
        title = " ".join(f"{name}={text(value)}" for name, value in chosen.items())
        prefix = "" if base is None or not base.name else f"{base.name} "
        found.append(_changed(Configuration(name="") if base is None else base, f"{prefix}{title}", chosen))
    return found


def text(value: Any) -> str:
    """Returns a value as it is written after ``--set``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _changed(base: Configuration, name: str, chosen: Mapping[str, Any]) -> Configuration:
    settings = dict(base.settings)
    options = dict(settings.get("options", {}))
    more: dict[str, Any] = {}
    for key, value in chosen.items():
        if key in _OF_THE_LEADER:
            more[key] = value
        elif key.startswith("options."):
            options[key.removeprefix("options.")] = value
        else:
            settings[key] = tuple(value) if isinstance(value, list) else value
    if options:
        settings["options"] = options
    return attrs.evolve(base, name=name, settings=settings, **more)


def read_configurations(path: Path) -> list[Configuration]:
    """Returns the configurations of a TOML file. Raises InputError that names the file and the key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no TOML ({error})") from None
    try:
        return configurations_of(document, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def configurations_of(document: Mapping[str, Any], name: str) -> list[Configuration]:
    """Returns the configurations of a parsed document. `name`: of a single configuration without a
    name. Raises InputError that names the key.
    """
    _known(document, _KEYS, "")
    base = _one(document, Configuration(name=""))
    several = document.get("configuration", [])
    sweep = document.get("sweep", {})
    if not isinstance(several, list) or not all(isinstance(each, dict) for each in several):
        raise InputError("configuration: write [[configuration]] before each one")
    if not isinstance(sweep, dict) or not all(isinstance(values, list) for values in sweep.values()):
        raise InputError("sweep: give each name a list of values, as max_warmups = [1, 2]")
    found = []
    for number, each in enumerate(several, start=1):
        _known(each, _KEYS[: _KEYS.index("sweep")], f"configuration {number}: ")
        if not each.get("name"):
            raise InputError(f"configuration {number}: name is missing")
        found.append(_one(each, attrs.evolve(base, name="")))
    if sweep:
        found += grid(sweep, base)
    return found or [attrs.evolve(base, name=base.name or name)]


def _one(table: Mapping[str, Any], base: Configuration) -> Configuration:
    shapes: dict[str, tuple[type | UnionType, str]] = {
        "name": (str, "text"),
        "assignor": (str, "text"),
        "announce_closes": (bool, "true or false"),
        "carrier": (str, "text"),
        "behaviour_version": (int | str, "a whole number, latest or recorded"),
        "knobs": (dict, "a table [knobs]"),
    }
    for key, (shape, wanted) in shapes.items():
        if key in table and not isinstance(table[key], shape):
            raise InputError(f"{key}: is {table[key]!r:.40}, and has to be {wanted}")
    given = {key: table[key] for key in ("name", *_OF_THE_LEADER) if key in table}
    return _changed(attrs.evolve(base, **given), given.get("name", base.name), _flat(table.get("knobs", {})))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` may be a table of its own."""
    options = settings.get("options", {})
    if not isinstance(options, dict):
        raise InputError("knobs.options: write a table")
    return {**{key: value for key, value in settings.items() if key != "options"}, **{f"options.{key}": value for key, value in options.items()}}


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise InputError(f"{where}there is no {key!r}; there are {', '.join(keys)} (settings go into [knobs])")
