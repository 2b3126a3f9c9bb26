"""Checks what commands print with `--json` against the schemas in equipoise/schemas."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from equipoise.cli import main

FOLDER = Path(__file__).parents[1] / "equipoise" / "schemas"
SHARED = "common"
"""The file that holds definitions alone."""

Key = tuple[str, str]
"""(definition, property). A definition is `status#task`, or `status` for the whole document."""


@functools.cache
def schemas() -> dict[str, Any]:
    """Every schema, by the name of its file without the suffix."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


@functools.cache
def validator(reference: str) -> Draft202012Validator:
    """The validator of `status` or of a definition, as `status#task`."""
    resources = [(f"{name}.json", Resource(contents=schema, specification=DRAFT202012)) for name, schema in schemas().items()]
    return Draft202012Validator({"$ref": address(reference)}, registry=Registry().with_resources(resources))


def address(reference: str) -> str:
    """`status#task` as a JSON reference: `status.json#/$defs/task`."""
    name, _, definition = reference.partition("#")
    return f"{name}.json#/$defs/{definition}" if definition else f"{name}.json"


def check(reference: str, document: Any) -> None:
    """Raises AssertionError, with the place and the problem, unless `document` fits the schema."""
    error = next(iter(validator(reference).iter_errors(document)), None)
    if error is not None:
        while error.context:
            error = max(error.context, key=lambda each: len(each.absolute_path))
        raise AssertionError(f"{reference} at {error.json_path}: {error.message:.300}")


def reference_of(context: click.Context) -> str | None:
    """The schema of what the command of `context` prints; None for a command that is no part of
    `equipoise`.
    """
    root, *names = context.command_path.split()
    name = "-".join(names)
    if root != main.name:
        return None
    return name


class Coverage:
    """Checks documents of one command, and notes which properties had a value in any of them."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.met: set[Key] = set()

    def check(self, document: Any) -> None:
        check(self.reference, document)
        self._note(self.reference, document)

    def never_met(self) -> set[Key]:
        """Properties that no document had a value for, among those of this command's own file."""
        name = self.reference.partition("#")[0]
        schema = schemas()[name]
        own = {name: schema, **{f"{name}#{each}": definition for each, definition in schema.get("$defs", {}).items()}}
        wanted = {(place, key) for place, definition in own.items() for key in definition.get("properties", {})}
        return wanted - self.met

    def _note(self, place: str, value: Any) -> None:
        name, _, definition = place.partition("#")
        schema = schemas()[name]
        self._walk(name, place, schema["$defs"][definition] if definition else schema, value)

    def _walk(self, name: str, place: str, schema: Any, value: Any) -> None:
        if value is None:
            return
        if "$ref" in schema:
            self._note(_place(schema["$ref"], name), value)
        for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            if "$ref" not in inner or validator(_place(inner["$ref"], name)).is_valid(value):
                self._walk(name, place, inner, value)
        if isinstance(value, list):
            for each in value:
                self._walk(name, place, schema.get("items") or {}, each)
        elif isinstance(value, dict):
            properties = schema.get("properties", {})
            for key, each in value.items():
                if key not in properties:
                    self._walk(name, place, schema.get("additionalProperties") or {}, each)
                    continue
                if each not in (None, [], {}):
                    self.met.add((place, key))
                self._walk(name, place, properties[key], each)


def _place(reference: str, name: str) -> str:
    """A JSON reference in the file `name` as `status#task`."""
    file, _, pointer = reference.partition("#")
    definition = pointer.removeprefix("/$defs/")
    own = file.removesuffix(".json") or name
    return f"{own}#{definition}" if definition else own


def closed_objects(schema: Any) -> Iterator[Any]:
    """Every schema within `schema` that names properties."""
    return (each for each in _within(schema) if isinstance(each.get("properties"), dict))


def references_in(name: str) -> set[str]:
    """What the file `name` refers to, as `status` or `status#task`."""
    return {_place(each["$ref"], name) for each in _within(schemas()[name]) if "$ref" in each}


def properties_of(name: str) -> set[str]:
    """Names of all properties in the file `name` and in the files that it refers to."""
    files = {name, *(each.partition("#")[0] for each in references_in(name))}
    return {key for file in files for each in closed_objects(schemas()[file]) for key in each["properties"]}


def _within(schema: Any) -> Iterator[dict[str, Any]]:
    """`schema` and every object in it."""
    if isinstance(schema, dict):
        yield schema
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _within(each)


_PREPARING = {"thousandths", "since_ms", "has_failed"}
NOT_MET: dict[str, set[Key]] = {
    "status": {
        *((f"status#{each}", "halted") for each in ("group", "one")),
        *((f"status#{each}", "partition") for each in ("group", "one")),
        *(("status#drain", each) for each in ("expected_ms", "left_ms")),
        *(("status#member", each) for each in ("drain", "crash_backoff_ms", "rack", "ready_lag_records", "restart", "back_ms")),
        *(("status#preparing", each) for each in _PREPARING),
        ("status#task", "kept_for"),
        ("status#task", "kept_ms"),
        ("status#task", "preparing"),
        ("status#copy", "preparing"),
    },
    "explain": {("explain#candidate", each) for each in ("rack", "traffic_cost", "load_share", "task_share")},
    "timeline": {("timeline#lifeline", "rack")},
    "what-if": {("what-if#fit", "opening_ms"), ("what-if#prediction", "bytes_read")},
    "incident": {
        ("incident#group_incidents", "unread"),
        ("incident", "at_once"),
        ("incident#incident", "restores"),
        *(("incident#restore", name) for name in ("task", "member", "from_ms", "until_ms", "is_over", "is_stuck")),
        *(("incident#at_once", name) for name in ("begin_ms", "end_ms", "groups", "causes")),
    },
    "verify": {("verify#fact", "event"), ("verify", "begins"), ("verify#group", "begins_offset")},
    "archive": {
        ("archive#copied", "unread"),
        ("archive#copied", "withdrawn"),
        *(("archive#restored", each) for each in ("partitions", "facts", "decisions", "written")),
        *(("archive#unread", each) for each in ("group", "partition", "offset", "number", "kind", "version", "problem")),
    },
    "size": {("size", "trend")},
    "scale-down": {("scale-down#followed", each) for each in ("group", "outcome", "members", "seconds", "picked", "change_id")},
}
"""Properties that the tests' logs have no value for: in them no member names a rack or a limit of
its own, prepares, is leaving or keeps crashing, the fact that diverges is a tick without fields, no
log begins at a base, no declared archive is withdrawn (tests/live/test_bases.py has both), none is
restored (test_restore.py), and no record is of a newer build (test_newer_events.py has some).
"""
