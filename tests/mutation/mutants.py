"""Mutants of one module: the operators of mutmut, and two of our own.

mutmut parses the source and knows the operators. It would write a tree with all mutants in it; here
a mutant is a code object that replaces the one of its function, in the process that tries it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).parents[2]
NOT_LOGIC = frozenset({"__repr__", "__str__"})
_ASSERTS = re.compile(r"^assert .*|,? ?\bstrict=\w+,?|, (?=\))")
"""What states that something cannot happen: an assertion, and `strict` of zip."""


_NEGATED_BY_MUTMUT = (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Equal, cst.NotEqual)


def no_string(node: cst.BaseString) -> Iterator[cst.BaseString]:
    """Empties a string, unless it is a docstring. mutmut makes three mutants that contain the text,
    and a test of a message compares a part.
    """
    if isinstance(node, cst.SimpleString) and node.raw_value and len(node.quote) == 1:
        yield cst.SimpleString('""')


def negated_condition(node: cst.If | cst.IfExp | cst.While) -> Iterator[cst.CSTNode]:
    """Negates a condition, unless another operator does."""
    test = node.test
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 and isinstance(test.comparisons[0].operator, _NEGATED_BY_MUTMUT):
        return
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])))


def dropped_statement(node: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """Drops a call, an assignment to an attribute or an element, and a return without a value."""
    statement = node.body[0]
    is_effect = (isinstance(statement, cst.Expr) and not isinstance(statement.value, cst.BaseString)) or (
        isinstance(statement, cst.Assign) and not isinstance(statement.targets[0].target, cst.Name | cst.Tuple)
    )
    if is_effect or (isinstance(statement, cst.Return) and statement.value is None) or isinstance(statement, cst.Raise | cst.Del):
        yield node.with_changes(body=[cst.Pass()])


OPERATORS: mutators.OPERATORS_TYPE = [
    *((kind, no_string if operator is mutators.operator_string else operator) for kind, operator in mutators.mutation_operators),
    (cst.If, negated_condition),
    (cst.IfExp, negated_condition),
    (cst.While, negated_condition),
    (cst.SimpleStatementLine, dropped_statement),
]


@attrs.frozen(kw_only=True)
class Mutant:
    module: str
    """Path below the root, as in statemachine/due.py."""
    function: str
    """Qualified name, as in StepContext.release."""
    before: str
    """The changed lines of the function, without indentation; with `nth` stable against shifts."""
    after: str
    nth: int
    """Counts the mutants of the function with the same `before` and `after`, from 1."""
    lines: frozenset[int]
    """Lines of the statement that is mutated."""
    all_lines: frozenset[int]
    """Lines of the function. A default value is in a line that no test runs."""
    source: str
    """The function, mutated."""

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.module, self.function, self.before, self.after, self.nth

    def __str__(self) -> str:
        return f"{self.module} {self.function}\n    - {self.before}\n    + {self.after}"

    def apply(self) -> None:
        """Makes this process run the mutant."""
        target = function_named(self.module, self.function)
        mutated = self._compiled(target)
        closed = target.__code__.co_freevars
        assert {"__class__"} >= {*closed} >= {*mutated.__code__.co_freevars}, "a function is a closure over its class at most"
        target.__code__ = mutated.__code__.replace(co_freevars=closed)  # without a dropped call of super, `__class__` is unused
        target.__defaults__, target.__kwdefaults__ = mutated.__defaults__, mutated.__kwdefaults__

    def _compiled(self, target: types.FunctionType) -> types.FunctionType:
        """The mutant's function, compiled in a class, where `super` is known and the function's own
        name is not.
        """
        namespace: dict[str, Any] = {}
        wrapped = "from __future__ import annotations\nclass Made:\n" + "".join(f"    {line}\n" for line in self.source.splitlines())
        exec(compile(wrapped, f"<{self.module}: {self.function}>", "exec"), target.__globals__, namespace)  # noqa: S102 - this repository's own code, changed
        made: types.FunctionType = inspect.getattr_static(namespace["Made"], self.function.rpartition(".")[2])
        return made


def function_named(module: str, name: str) -> types.FunctionType:
    holder: Any = importlib.import_module("equipoise." + module.removeprefix("equipoise/").removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        holder = inspect.getattr_static(holder, part)
    if isinstance(holder, property):
        holder = holder.fget
    if isinstance(holder, staticmethod | classmethod):
        holder = holder.__func__
    function = inspect.unwrap(holder)
    assert isinstance(function, types.FunctionType), f"{module}: {name} is no function"
    return function


class _Visitor(MutationVisitor):  # type: ignore[misc]  # its types are not followed
    """Collects mutations with their statements' lines. Visits properties and attrs classes too,
    which mutmut leaves out because it wraps what it mutates.
    """

    def __init__(self) -> None:
        super().__init__(OPERATORS, IgnoredCode(set(), set(), set()))
        self.lines: list[frozenset[int]] = []
        self.names: dict[cst.CSTNode, str] = {}
        self.spans: dict[cst.CSTNode, frozenset[int]] = {}
        self._statements: list[frozenset[int]] = []
        self._inside: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._inside.append(node.name.value)
            self.names[node] = ".".join(self._inside)
            span = self.get_metadata(PositionProvider, node)
            self.spans[node] = frozenset(range(span.start.line, span.end.line + 1))
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self._statements.append(self._lines_of(node))
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._inside.pop()
        if isinstance(original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self._statements.pop()

    def _create_mutations(self, node: cst.CSTNode) -> None:
        super()._create_mutations(node)
        lines = self._statements[-1] if self._statements else frozenset()
        self.lines += [lines] * (len(self.mutations) - len(self.lines))

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Decorator):
            return True
        if isinstance(node, cst.FunctionDef):
            return node.name.value in NOT_LOGIC
        return not isinstance(node, cst.ClassDef) and super()._skip_node_and_children(node)

    def _lines_of(self, node: cst.CSTNode) -> frozenset[int]:
        """The lines of a statement; of a compound one the lines before its body."""
        span = self.get_metadata(PositionProvider, node)
        last = span.end.line
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock):
            last = max(self.get_metadata(PositionProvider, body.body[0]).start.line - 1, span.start.line)
        return frozenset(range(span.start.line, last + 1))


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, each side joined into one line."""
    sides: tuple[list[str], list[str]] = ([], [])
    old, new = before.splitlines(), after.splitlines()
    for tag, first, last, first_new, last_new in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            sides[0].extend(line.strip() for line in old[first:last])
            sides[1].extend(line.strip() for line in new[first_new:last_new])
    return " ".join(sides[0]), " ".join(sides[1])


@attrs.define
class Module:
    """A module and its mutants."""

    name: str
    """Path below the root, as in statemachine/due.py."""

    @property
    def text(self) -> str:
        return (ROOT / self.name).read_text(encoding="utf-8")

    @cached_property
    def mutants(self) -> Sequence[Mutant]:
        wrapper = MetadataWrapper(cst.parse_module(self.text))
        visitor = _Visitor()
        module = wrapper.visit(visitor)
        made: list[Mutant] = []
        seen: Counter[tuple[str, str, str]] = Counter()
        plain: dict[cst.FunctionDef, tuple[cst.FunctionDef, str]] = {}
        for mutation, lines in zip(visitor.mutations, visitor.lines, strict=True):
            holder = mutation.contained_by_top_level_function
            if not isinstance(holder, cst.FunctionDef):
                continue
            name = visitor.names[holder]
            if holder not in plain:
                bare = holder.with_changes(decorators=(), leading_lines=(), lines_after_decorators=())
                plain[holder] = bare, module.code_for_node(bare)
            function, source = plain[holder]
            mutated = module.code_for_node(_replaced(function, mutation))
            before, after = _changed_lines(source, mutated)
            if before == after or _ASSERTS.sub("", before) == _ASSERTS.sub("", after) or not _compiles(mutated):
                continue
            seen[name, before, after] += 1
            made.append(
                Mutant(
                    module=self.name,
                    function=name,
                    before=before,
                    after=after,
                    nth=seen[name, before, after],
                    lines=lines,
                    all_lines=visitor.spans[holder],
                    source=mutated,
                )
            )
        return made


def _replaced(function: cst.FunctionDef, mutation: Mutation) -> cst.FunctionDef:
    replaced = deep_replace(function, mutation.original_node, mutation.mutated_node)
    assert isinstance(replaced, cst.FunctionDef)
    return replaced


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
