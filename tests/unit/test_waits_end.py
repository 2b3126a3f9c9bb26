"""Every wait ends. Whoever waits for somebody else (a future, an event, a queue, a stream, or a loop
of such waits) does so within a time, or idles in a job that its owner calls off. Who holds a lock
waits so, too, and so do those who wait for the lock.

A loop ends, however short its waits are, when it compares times or counts, looks at a `Standstill`,
takes from what it ends with, or asks whether its owner has ended.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "equipoise"
NOT_DEPLOYED = {"testing"}
MOST_EXCEPTIONS = 10
BOUNDS = {"timeout", "timeout_at", "within"}
IN_TIME = {"wait_for", "answered"}
"""What they are given ends in time."""
TIMERS = {"call_later", "call_at", "call_soon"}
"""A function with one of them sets what it waits for itself."""
SETTERS = {"add_signal_handler", "add_reader"}
"""So does one that has an event set by a signal or by the end of a process: its operator's, or that
of a process that it watches.
"""
BEGIN = {"ensure_future", "create_task", "begin_job", "run_coroutine_threadsafe", "run_until_failed", "_keep_going", "answered", "add_future"}
"""They begin jobs: coroutines whose own waits are looked at where these are written."""
EVENTS = {"wait", "join", "get", "acquire", "readline", "drain", "communicate", "wait_closed"}
STREAMS = {"readexactly", "readuntil", "open_connection", "open_unix_connection"}
COMBINED = {"gather", "shield", "wrap_future"}
HELD = ("Task[", "Coroutine[")
CLOCKS = ("_s", "_ms")
COUNTS = ("MOST", "LOOKS")
TAKES = {"pop", "popleft", "update"}
OWNERS = {"_is_closed", "_closing", "_stopping", "is_set"}
BESIDE = {"to_thread", "run_blocking", "run_in_executor"}
"""They wait for a thread of this process."""
EXCEPTIONS: Mapping[str, str] = {
    "member/tasks/callbacks:result_of": "a function of the application, which may take as long as it likes; the member ends without it",
    "member/tasks/processing:Processing._handle": "a handler, likewise",
    "member/member:Member.wait": "the application waits for the end of its member",
    "member/session/link:Link.probe_once": "the reader, which has its own timeouts; without a probe the lease ends, and with it this wait",
    "member/tasks/open_task:TaskCommits.commit": "its turn, which `CommitTicks` gives in every interval",
    "member/tasks/open_task:TaskCommits.over": "a commit, each of whose own waits is bounded; `close` calls it off",
    "member/copies/restorer:ChangelogRestorer._reached": "a restore takes as long as its changelog; `put_back` ends it",
    "member/tasks/runner:TaskRunner._stay_parked": "an operator, until the task is given back",
    "witness/server:WitnessServer._watch": "the end of the process that connected",
    "witness/supervisor:_Children.ended_with": "the end of the command that it runs",
}
"""Function that waits without a bound -> what it waits for, and who ends that."""


class Finder:
    """Finds waits without a bound in a module. `jobs`: names of functions that any module begins
    as jobs. `of_jobs`: of those that only jobs call. `in_time`: of those that are only called
    within a time. `looking`: of those that look at a `Standstill`.
    """

    def __init__(
        self, tree: ast.Module, jobs: Iterable[str], of_jobs: Iterable[str] = (), in_time: Iterable[str] = (), looking: Iterable[str] = ()
    ) -> None:
        self._tree, self._jobs, self._of_jobs = tree, set(jobs), set(of_jobs)
        self._in_time, self._looking = set(in_time), set(looking)
        self._begun = set(begun(tree)) if any(isinstance(each, ast.Await) for each in ast.walk(tree)) else set()

    def unbounded(self) -> Iterator[tuple[str, int]]:
        """Yields function and line of each."""
        yield from self._look(self._tree, (), is_job=False, idles=False)

    def _look(self, node: ast.AST, names: tuple[str, ...], *, is_job: bool, idles: bool) -> Iterator[tuple[str, int]]:
        if is_bounded(node):
            return
        if isinstance(node, ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in self._in_time or sets_itself(node):
                return
            names, is_job, idles = (*names, node.name), node.name in self._jobs or is_page(node), False
        if isinstance(node, ast.While):
            idles |= is_job
            of_job = bool(self._of_jobs.intersection(names[-1:])) and (polls(node) or is_service(node))
            if not is_job and not of_job and loops(node) and not self._ends(node):
                yield ".".join(names), node.lineno
        if isinstance(node, ast.Await) and not idles and self._waits(node.value):
            yield ".".join(names), node.lineno
        for child in ast.iter_child_nodes(node):
            yield from self._look(child, names, is_job=is_job, idles=idles)

    def _ends(self, loop: ast.While) -> bool:
        """Returns whether it compares times or counts, or takes from what it ends with; or whether
        its owner ends it.
        """
        compared = {last_name(name) for each in ast.walk(loop) if isinstance(each, ast.Compare) for name in ast.walk(each)}
        if any(name.endswith(CLOCKS) or any(count in name for count in COUNTS) for name in compared):
            return True
        asked = {last_name(each) for each in ast.walk(loop.test)}
        counted = {last_name(each.target) for each in ast.walk(loop) if isinstance(each, ast.AugAssign)}
        taken = {last_name(each.value) for each in ast.walk(loop) if isinstance(each, ast.Attribute) and each.attr in TAKES}
        conditions = (each.test for each in ast.walk(loop) if isinstance(each, ast.While | ast.If))
        owners = {last_name(name) for condition in conditions for name in ast.walk(condition)}
        calls = {name_of(each) for each in ast.walk(loop)} | ({"islice"} if "islice" in map(last_name, ast.walk(loop.test)) else set())
        ends = asked & (counted | taken | filtered(loop)) or owners & OWNERS or calls & (self._looking | {"islice"})
        return bool(ends) or looks(loop) or ("done" in asked and bool(asked & self._begun)) or waits_for_job(loop.test)

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
    return isinstance(value, ast.ListComp | ast.GeneratorExp) and isinstance(value.elt, ast.Call) and not is_event(value.elt)


def callers_of(tree: ast.AST, within: tuple[str, ...] = (), *, in_time: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Yields what is called, by which function, and whether within a time."""
    for node in ast.iter_child_nodes(tree):
        ends = in_time or name_of(node) in IN_TIME or is_bounded(node)
        functions = (*within, node.name) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else within
        if isinstance(node, ast.Call):
            yield from ((name_of(node), function, in_time or is_bounded(node)) for function in within)
        yield from callers_of(node, functions, in_time=ends)


def known_as(name: str, path: Path) -> str:
    """A private name is that of its module."""
    return f"{path}:{name}" if name.startswith("_") else name


TIME = ""
"""In place of a caller: the call is within a time."""


def callers(trees: Mapping[Path, ast.AST]) -> dict[str, set[str]]:
    """Returns function -> those that call it."""
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for name, caller, ends in callers_of(tree):
            found.setdefault(known_as(name, path), set()).add(TIME if ends else known_as(caller, path))
    return found


def closure(first: Iterable[str], of: Mapping[str, set[str]]) -> set[str]:
    """Returns `first`, functions that only these call, and those that only these call."""
    found = set(first)
    while more := {name for name, by in of.items() if by <= found} - found:
        found |= more
    return found


def is_bounded(node: ast.AST) -> bool:
    return isinstance(node, ast.AsyncWith) and any(name_of(item.context_expr) in BOUNDS for item in node.items)


def is_page(function: ast.AST) -> bool:
    """Returns whether it answers a request: its server ends it with the connection."""
    annotations = (ast.unparse(each.annotation) for each in ast.walk(function) if isinstance(each, ast.arg) and each.annotation is not None)
    return any(each in ("web.Request", "ServicerContext") for each in annotations)


def sets_itself(function: ast.AST) -> bool:
    calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
    return any(name_of(each) in TIMERS or (name_of(each) in SETTERS and last_name(each.args[-1]) == "set") for each in calls)


def looks(tree: ast.AST) -> bool:
    """Returns whether it looks at a `Standstill`."""
    looked_at = (each.value for each in ast.walk(tree) if isinstance(each, ast.Attribute) and each.attr == "look")
    return any("standstill" in ast.unparse(each) for each in looked_at)


def looking_functions(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and looks(function):
            yield function.name


def filtered(loop: ast.While) -> set[str]:
    """Returns the names that get a part of what there was."""
    return {
        last_name(each.targets[0])
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.ListComp) and any(inner.ifs for inner in each.value.generators)
    }


def waits_for_job(condition: ast.AST) -> bool:
    """Returns whether a loop goes on until a job ends: looks in between change nothing of that."""
    return any(ast.unparse(each.func) == "asyncio.wait" for each in ast.walk(condition) if isinstance(each, ast.Call))


def is_service(loop: ast.While) -> bool:
    """Returns whether it goes on until it is cancelled."""
    leaves = any(isinstance(each, ast.Return | ast.Break) for each in ast.walk(loop))
    return isinstance(loop.test, ast.Constant) and not leaves


def jobs_of(tree: ast.AST) -> Iterator[str]:
    """Yields names of functions that are begun as jobs, or listed in `jobs` for that."""
    for node in ast.walk(tree):
        given: list[ast.expr] = node.args if isinstance(node, ast.Call) and name_of(node) in {*BEGIN, "start", "start_unix_server"} else []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.run":  # what the operator runs, and interrupts
            given = node.args
        if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "jobs" and isinstance(node.value, ast.List):
            given = node.value.elts
        yield from (name_of(each) or last_name(each) for each in given)


def is_event(called: ast.AST) -> bool:
    """Returns whether it waits for an event, a queue, a lock or a stream; `self.wait()` is a
    function.
    """
    if not isinstance(called, ast.Call):
        return False
    if name_of(called) in STREAMS:
        return True
    if called.args or called.keywords or not isinstance(called.func, ast.Attribute):
        return False
    return called.func.attr in EVENTS and ast.unparse(called.func.value) != "self"


def polls(loop: ast.While) -> bool:
    return any(isinstance(each, ast.Await) and name_of(each.value) == "sleep" for each in ast.walk(loop))


def loops(loop: ast.While) -> bool:
    """Returns whether it waits for somebody else in each round."""
    waits = [each.value for each in ast.walk(loop) if isinstance(each, ast.Await)]
    waits = [each for each in waits if name_of(each) not in BESIDE and ast.unparse(each) != "asyncio.sleep(0)"]
    runs = any(name_of(each) == "run" and "_loop" in ast.unparse(each.func) for each in ast.walk(loop) if isinstance(each, ast.Call))
    return bool(waits) or runs or any(isinstance(each, ast.AsyncFor | ast.AsyncWith) for each in ast.walk(loop))


def last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript | ast.Starred):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def name_of(called: ast.AST) -> str:
    return last_name(called.func) if isinstance(called, ast.Call) else ""


def modules() -> Iterator[Path]:
    """Yields those that are deployed and wait."""
    for path in sorted(Path(folder, name) for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names if name.endswith(".py")):
        if path.relative_to(PACKAGE).parts[0] not in NOT_DEPLOYED and ("async " in (text := path.read_text()) or "_loop.run" in text):
            yield path


def found() -> dict[str, list[int]]:
    """Function -> lines of its waits without a bound."""
    trees = {path: ast.parse(path.read_text()) for path in modules()}
    jobs = {known_as(name, path) for path, tree in trees.items() for name in jobs_of(tree)}
    calls = callers(trees)
    of_jobs = closure(jobs, {name: of - {TIME} for name, of in calls.items() if of != {TIME}})
    in_time = closure([TIME], calls)
    looking = {known_as(name, path) for path, tree in trees.items() for name in looking_functions(tree)}
    waits: dict[str, list[int]] = {}
    for path, tree in trees.items():
        there = ([each.removeprefix(f"{path}:") for each in names] for names in (jobs, of_jobs, in_time, looking))
        for name, line in Finder(tree, *there).unbounded():
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
        "while position < end: position = await read(timeout_s=1.0)",
        "while position < end:\n  async for each in some(): position = each",
        "while position < end: position = self._loop.run(read())",
        "while await position() < end: await read(timeout_s=1.0)",
        "await reader.readline()",
        "await reader.readexactly(4)",
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
        "while await position() < end:\n  standstill.look(position)\n  await read()",
        "while left > 0: left -= await read()",
        "while parts: await read(parts.pop())",
        "while parts:\n  wrong = await read(parts)\n  parts = [each for each in wrong if each.is_large]",
        "while not self._is_closed: await read()",
        "while looks < MOST_LOOKS: await read()",
        "while parts := made():\n  await asyncio.sleep(0)",
        "task = asyncio.ensure_future(other())\n while not task.done(): await look()",
        "loop.add_signal_handler(number, stop.set)\n await stop.wait()",
    ],
)
def test_wait_with_a_bound_is_not_found(body: str) -> None:
    assert list(Finder(ast.parse("async def waits():\n " + body.replace("\n  ", "\n   ")), ()).unbounded()) == []


def test_job_may_idle_in_its_loop_only() -> None:
    source = "async def job():\n await ready.wait()\n while True: await woken.wait()"
    assert list(Finder(ast.parse(source), ["job"]).unbounded()) == [("job", 2)]


def test_function_that_is_called_within_a_time_only_may_wait() -> None:
    source = "async def called():\n await event.wait()\nasync def calls():\n async with asyncio.timeout(1.0): await called()"
    tree = ast.parse(source)
    assert "called" in closure([TIME], callers({PACKAGE: tree}))
    assert list(Finder(tree, (), in_time=["called"]).unbounded()) == []
    also = ast.parse(f"{source}\nasync def other():\n await called()")
    assert "called" not in closure([TIME], callers({PACKAGE: also}))


def test_loop_of_a_job_may_go_on_and_one_that_it_reads_by_may_not() -> None:
    source = "async def helps():\n while True: await read()\nasync def reads():\n while position < end: await read()"
    assert list(Finder(ast.parse(source), ["job"], ["helps", "reads"]).unbounded()) == [("reads", 4)]
