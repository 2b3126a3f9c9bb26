"""Every wait ends. Whoever waits for somebody else (a future, an event, a queue, or a loop that
looks again and again) does so within a time, or idles in a job that its owner calls off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "equipoise"
PARTS = ("kafka", "member", "worker", "seat", "broker_seat")
MOST_EXCEPTIONS = 10
BOUNDS = {"timeout", "timeout_at", "within"}
IN_TIME = {"wait_for", "answered"}
"""What they are given ends in time."""
TIMERS = {"call_later", "call_at"}
"""A function with one of them sets what it waits for itself."""
BEGIN = {"ensure_future", "create_task", "begin_job", "run_coroutine_threadsafe", "run_until_failed", "_keep_going", "answered"}
"""They begin jobs: coroutines whose own waits are looked at where these are written."""
EVENTS = {"wait", "join", "get", "acquire"}
COMBINED = {"gather", "shield", "wrap_future"}
HELD = ("Task[", "Coroutine[")
CLOCKS = ("_s", "_ms")
EXCEPTIONS: Mapping[str, str] = {
    "member/callbacks:result_of": "a function of the application, which may take as long as it likes; the member ends without it",
    "member/processing:Processing._handle": "a handler, likewise",
    "member/embedded_member:Member.wait": "the application waits for the end of its member",
    "member/link:Link.probe_once": "the reader, which has its own timeouts; without a probe the lease ends, and with it this wait",
    "member/open_task:TaskCommits.commit": "its turn, which `CommitTicks` gives in every interval",
    "member/open_task:TaskCommits.over": "a commit, each of whose own waits is bounded; `close` calls it off",
    "member/restorer:ChangelogRestorer._reached": "a restore takes as long as its changelog is; `put_back` ends it, and reports show how far it is",
    "member/task_runner:TaskRunner._stay_parked": "an operator, until the task is given back",
    "member/turns:Turns.next": "the next pass of the event loop",
    "worker/keda_scaler:KedaScaler._stream_is_active": "a stream for the autoscaler, which cancels it",
}
"""Function that waits without a bound -> what it waits for, and who ends that."""


class Finder:
    """Finds waits without a bound in a module. `jobs`: names of functions that any module begins
    as jobs. `of_jobs`: of those that only jobs call.
    """

    def __init__(self, tree: ast.Module, jobs: Iterable[str], of_jobs: Iterable[str] = ()) -> None:
        self._tree, self._jobs, self._of_jobs = tree, set(jobs), set(of_jobs)
        self._begun = set(begun(tree))

    def unbounded(self) -> Iterator[tuple[str, int]]:
        """Yields function and line of each."""
        yield from self._look(self._tree, (), is_job=False, idles=False)

    def _look(self, node: ast.AST, names: tuple[str, ...], *, is_job: bool, idles: bool) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.AsyncWith) and any(name_of(item.context_expr) in BOUNDS for item in node.items):
            return
        if isinstance(node, ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(name_of(each) in TIMERS for each in ast.walk(node)):
                return
            names, is_job, idles = (*names, node.name), node.name in self._jobs, False
        if isinstance(node, ast.While):
            idles |= is_job
            if not self._of_jobs.intersection(names[-1:]) and polls(node) and not ends_in_time(node):
                yield ".".join(names), node.lineno
        if isinstance(node, ast.Await) and not idles and self._waits(node.value):
            yield ".".join(names), node.lineno
        for child in ast.iter_child_nodes(node):
            yield from self._look(child, names, is_job=is_job, idles=idles)

    def _waits(self, awaited: ast.expr) -> bool:
        if not isinstance(awaited, ast.Call):
            return self._is_woken(awaited)
        if ast.unparse(awaited.func) == "asyncio.wait":
            return all(each.arg != "timeout" for each in awaited.keywords) and self._is_woken(awaited.args[0])
        if name_of(awaited) in COMBINED:
            return any(map(self._is_woken, awaited.args))
        return self._is_woken(awaited)

    def _is_woken(self, awaited: ast.expr) -> bool:
        """Returns whether it is no coroutine and no job: somebody else has to wake who waits."""
        match awaited:
            case ast.Starred(value=inner) | ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
                return self._is_woken(inner)
            case ast.IfExp(body=one, orelse=other):
                return self._is_woken(one) or self._is_woken(other)
            case ast.Tuple(elts=several) | ast.List(elts=several):  # the first of them that ends is enough
                return bool(several) and all(map(self._is_woken, several))
            case ast.Call():
                return is_event(awaited) or (name_of(awaited) == "ensure_future" and any(map(is_event, awaited.args)))
            case _:
                return last_name(awaited) not in self._begun


def begun(tree: ast.AST) -> Iterator[str]:
    """Yields names of variables and fields that hold jobs, or coroutines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None and any(kind in ast.unparse(node.annotation) for kind in HELD):
            yield node.arg if isinstance(node, ast.arg) else last_name(node.target)
        if isinstance(node, ast.Assign) and (any(map(begins, ast.walk(node.value))) or calls_each(node.value)):
            for target in node.targets:
                yield from map(last_name, target.elts if isinstance(target, ast.Tuple) else [target])


def begins(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or any(map(is_event, node.args)):
        return False
    return name_of(node) in BEGIN or (name_of(node) == "start" and any(isinstance(each, ast.Call) for each in node.args))


def calls_each(value: ast.expr) -> bool:
    return isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call) and not is_event(value.elt)


def callers_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields what is called, and by which function; without what is called within a time."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            in_time = {inner for each in ast.walk(function) if name_of(each) in IN_TIME for inner in ast.walk(each)}
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and node not in in_time:
                    yield name_of(node), function.name


def known_as(name: str, path: Path) -> str:
    """A private name is that of its module."""
    return f"{path}:{name}" if name.startswith("_") else name


def only_of(jobs: set[str], trees: Mapping[Path, ast.AST]) -> set[str]:
    """Returns jobs, functions that only jobs call, and those that only these call."""
    callers: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for name, caller in callers_of(tree):
            callers.setdefault(known_as(name, path), set()).add(known_as(caller, path))
    of_jobs = set(jobs)
    while more := {name for name, of in callers.items() if of <= of_jobs} - of_jobs:
        of_jobs |= more
    return of_jobs


def jobs_of(tree: ast.AST) -> Iterator[str]:
    """Yields names of functions that are begun as jobs, or listed in `jobs` for that."""
    for node in ast.walk(tree):
        given: list[ast.expr] = node.args if isinstance(node, ast.Call) and name_of(node) in {*BEGIN, "start"} else []
        if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "jobs" and isinstance(node.value, ast.List):
            given = node.value.elts
        yield from (name_of(each) or last_name(each) for each in given)


def is_event(called: ast.AST) -> bool:
    """Returns whether it waits for an event, a queue or a lock; `self.wait()` is a function."""
    if not isinstance(called, ast.Call) or called.args or called.keywords or not isinstance(called.func, ast.Attribute):
        return False
    return called.func.attr in EVENTS and ast.unparse(called.func.value) != "self"


def polls(loop: ast.While) -> bool:
    return any(isinstance(each, ast.Await) and name_of(each.value) == "sleep" for each in ast.walk(loop))


def ends_in_time(loop: ast.While) -> bool:
    """Returns whether it compares times."""
    compared = (name for each in ast.walk(loop) if isinstance(each, ast.Compare) for name in ast.walk(each))
    return any(last_name(each).endswith(CLOCKS) for each in compared)


def last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript | ast.Starred):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def name_of(called: ast.AST) -> str:
    return last_name(called.func) if isinstance(called, ast.Call) else ""


def found() -> dict[str, list[int]]:
    """Function -> lines of its waits without a bound."""
    trees = {path: ast.parse(path.read_text()) for part in PARTS for path in sorted((PACKAGE / part).rglob("*.py"))}
    jobs = {known_as(name, path) for path, tree in trees.items() for name in jobs_of(tree)}
    of_jobs = only_of(jobs, trees)
    waits: dict[str, list[int]] = {}
    for path, tree in trees.items():
        own = f"{path}:"
        for name, line in Finder(tree, (each.removeprefix(own) for each in jobs), (each.removeprefix(own) for each in of_jobs)).unbounded():
            waits.setdefault(f"{path.relative_to(PACKAGE).with_suffix('')}:{name}", []).append(line)
    return waits


def test_each_wait_has_a_bound_or_is_an_exception_with_a_reason() -> None:
    waits = found()
    assert {name: lines for name, lines in waits.items() if name not in EXCEPTIONS} == {}, "put `within` around the wait"
    assert EXCEPTIONS.keys() - waits == set(), "they do not wait any more: take them out"
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS


@pytest.mark.parametrize(
    "body",
    [
        "await self._future",
        "await event.wait()",
        "await asyncio.ensure_future(event.wait())",
        "await queue.get()",
        "await queue.join()",
        "await lock.acquire()",
        "await asyncio.wait((one, other))",
        "await asyncio.shield(one)",
        "await asyncio.wrap_future(one)",
        "await asyncio.gather(*futures)",
        "while not self.is_done: await asyncio.sleep(0.1)",
        "while True:\n  await asyncio.sleep(1)\n  if looked(): return",
    ],
)
def test_wait_without_a_bound_is_found(body: str) -> None:
    source = "async def waits():\n " + body.replace("\n", "\n ")
    assert {name for name, _ in Finder(ast.parse(source), ()).unbounded()} == {"waits"}


@pytest.mark.parametrize(
    "body",
    [
        "async with asyncio.timeout(1.0): await event.wait()",
        "async with within('an answer'): await future",
        "await asyncio.wait((one,), timeout=1.0)",
        "await asyncio.wait_for(event.wait(), 1.0)",
        "await other()",
        "await asyncio.gather(*map(other, jobs))",
        "task = asyncio.ensure_future(other())\n await asyncio.shield(task)",
        "while now_s() < until_s: await asyncio.sleep(0.1)",
    ],
)
def test_wait_with_a_bound_is_not_found(body: str) -> None:
    assert list(Finder(ast.parse("async def waits():\n " + body), ()).unbounded()) == []


def test_job_may_idle_in_its_loop_only() -> None:
    source = "async def job():\n await ready.wait()\n while True: await woken.wait()"
    assert list(Finder(ast.parse(source), ["job"]).unbounded()) == [("job", 2)]
