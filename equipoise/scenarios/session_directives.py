"""Directives for the member's own side: the real MemberSession, a clock, and a network whose every
message is moved by hand (docs/protocol.md, M4 and M5).

A heartbeat is sent, appended and acknowledged; a fetch is sent, served and arrives: three lines
each, with any time between them. `beat` does all six at once. Whenever something happens, and at
every moment of a `wait` at which a lease ends or a hold is over, all sessions are asked which tasks
they may process; a task that two may process is told as TWO OWNERS, and is an error of the run
unless a rule was dropped on purpose.
"""

from __future__ import annotations

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import Lag, TaskId
from equipoise.scenarios.context import Context
from equipoise.scenarios.parsed_directive import Argument, ParsedDirective
from equipoise.scenarios.registry import directive
from equipoise.scenarios.render import by_task_text, fact_text
from equipoise.scenarios.session_harness import SIMPLER, Fetch, Host, SessionHarness
from equipoise.scenarios.text import ScenarioError
from equipoise.scenarios.values import ENDS, LAGS, NAMES, TASKS, TEXT, WHOLE, YES_NO, one_of, tasks_text
from equipoise.statemachine.member import MemberSession, MemberSettings


def _harness(context: Context) -> SessionHarness:
    if context.session_harness is None:
        context.session_harness = SessionHarness(context)
    return context.session_harness


def _host(harness: SessionHarness, parsed: ParsedDirective) -> Host:
    found = harness.hosts.get(parsed.member)
    if found is None:
        raise _no_such_session(harness, parsed, parsed.member)
    return found


def _chosen(harness: SessionHarness, parsed: ParsedDirective) -> list[Host]:
    if parsed.directive.words == ("all",):
        return [host for _, host in sorted(harness.hosts.items()) if host.session.ended is None]
    names = parsed.members()
    for name in names:
        if name not in harness.hosts:
            raise _no_such_session(harness, parsed, name)
    return [harness.hosts[name] for name in names]


def _no_such_session(harness: SessionHarness, parsed: ParsedDirective, name: str) -> ScenarioError:
    return parsed.error(f"there is no session {name!r}; there are {', '.join(sorted(harness.hosts)) or 'none'}")


def _line(harness: SessionHarness, host: Host) -> str:
    """``m1 epoch=2 may=(0_0) not=(0_1:hold) lease_ms=26990``: asked in a copy, so that asking
    changes nothing.
    """
    session = type(host.session).restore(host.session.settings, host.session.snapshot())
    now_ms = harness.now_ms
    refusals = {task: session.refusal(task, now_ms) for task in sorted({*session.grants, *session.closing})}
    words = [host.name, f"epoch={session.assignment_epoch}", f"may={tasks_text(task for task, why in refusals.items() if why is None)}"]
    refused = {task: why for task, why in refusals.items() if why is not None}
    if refused:
        words.append(f"not={by_task_text(refused)}")
    for name, tasks in (("standby", session.standby), ("warmup", session.warmup)):
        if tasks:
            words.append(f"{name}={tasks_text(tasks)}")
    if session.ended is not None:
        words.append(f"ended={session.ended.value}{':' + session.end_cause if session.end_cause else ''}")
    elif session.joined:
        words.append(f"lease_ms={session.lease_ends_ms - now_ms}")
    return " ".join(words)


@directive(
    "session",
    "MEMBER",
    "A real MemberSession: its decisions reader is placed at the end, it joins, its join is appended at once. A heartbeat is due every millisecond.",
    incarnation=Argument(WHOLE, "its number; default: one above the member's last. From the second on it is named m1/2"),
    capacity=Argument(WHOLE, "threads; 1"),
    session_timeout_ms=Argument(WHOLE, "see `group`"),
    lease_margin_ms=Argument(WHOLE, "see `group`"),
    ended=Argument(WHOLE, "the incarnation it proves dead ([M5](protocol.md#m5))"),
    ready_lag=Argument(WHOLE, "a limit of its own: a copy with at most this lag is ready; default: the group's"),
    prepares=Argument(YES_NO, "yes: its application prepares tasks; no copy is ready before `prepared` says so"),
    epoch=Argument(WHOLE, "the topology epoch it runs; default: the newest"),
    nonce=Argument(TEXT, "join nonce; default: a new one"),
    copies=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "see `join`"),
    placed=Argument(YES_NO, "no: it joins without having placed its reader ([M1](protocol.md#m1))"),
    topic_ids=Argument(YES_NO, "no: its brokers give topics no ids, so that it cannot tell re-created topics by them ([L9](protocol.md#l9))"),
    remembers=Argument(YES_NO, "no: it does not know which log its member was in before"),
    newer_from=Argument(
        WHOLE,
        "decisions from this number on are written by a newer build, in versions it does not know ([M9](protocol.md#m9))",
    ),
    without=Argument(one_of(*SIMPLER), "a rule this session lacks, to see what the simpler design does"),
)
def session(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    topology = context.state.topology
    rule = parsed.get("without", "")
    kind = SIMPLER.get(rule, MemberSession)
    try:
        settings = MemberSettings(
            member_id=parsed.member,
            incarnation=parsed.get("incarnation", harness.lives.get(parsed.member, 0) + 1),
            capacity=parsed.get("capacity", 1),
            session_timeout_ms=parsed.get("session_timeout_ms", context.defaults.session_timeout_ms),
            lease_margin_ms=parsed.get("lease_margin_ms", context.defaults.lease_margin_ms),
            topology_epoch=parsed.get("epoch", 0 if topology is None else topology.epoch),
            join_nonce=parsed.get("nonce", "") or context.next_nonce(),
            ended_incarnation=parsed.find("ended"),
            eager=parsed.get("eager", False),
            former_log_id=harness.log_ids.get(parsed.member) if parsed.get("remembers", True) else None,
            heartbeat_interval_ms=1,
            ready_lag_records=parsed.find("ready_lag"),
            prepares=parsed.get("prepares", False),
            stateful_subtopologies=frozenset(part.subtopology for part in topology.subtopologies if part.stateful) if topology else frozenset(),
        )
    except FieldError as error:
        raise parsed.error(str(error)) from None
    host = Host(
        session=kind(settings),
        topic_ids=parsed.get("topic_ids", True),
        newer_from=parsed.find("newer_from"),
        places=parsed.get("placed", True),
        rule_dropped=rule,
    )
    harness.hosts[host.name] = host
    on_disk: dict[TaskId, Lag] = parsed.get("copies", {})
    for task, lag in on_disk.items():
        host.session.copy_progress(task, lag, harness.now_ms)
    try:
        harness.join(host)
    except InputError as error:
        context.say(f"!! {host.name} does not join: {error}")
        del harness.hosts[host.name]
        return
    harness.lives[parsed.member] = settings.incarnation
    harness.look()


@directive("wait", "", "Time passes for sessions and for the broker's clock; nothing is sent.", ms=Argument(WHOLE, "how long"))
def wait(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    harness.wait(parsed.get("ms", 0))
    context.say(*(_line(harness, host) for _, host in sorted(harness.hosts.items())))


@directive(
    "failover",
    "",
    "Another broker takes over: from here on append times jump by so much; the sessions' clocks do not.",
    jump_ms=Argument(WHOLE, "forward, or back when below 0"),
)
def failover(context: Context, parsed: ParsedDirective) -> None:
    context.group_harness.append_ms = max(0, context.group_harness.append_ms + parsed.get("jump_ms", 0))


@directive("hb-send", "SESSION...", "The session sends what it has to say: what is urgent, and a heartbeat. It is under way.")
def hb_send(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        facts = harness.send(host)
        context.say(f"{host.name} sends {', '.join(fact_text(fact) for fact in facts) or 'nothing'}")
    harness.look()


@directive(
    "hb-append",
    "SESSION...",
    "The broker appends the next message that is under way, and the leader folds it.",
    all=Argument(YES_NO, "all of them, not one"),
)
def hb_append(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        some = False
        while harness.append(host):
            some = True
            if not parsed.get("all", False):
                break
        if not some:
            raise parsed.error(f"nothing of {host.name} is under way to the broker")
    harness.look()


@directive("hb-ack", "SESSION...", "The acknowledgement of the first appended message arrives.", all=Argument(YES_NO, "all of them, not one"))
def hb_ack(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if not harness.acknowledge(host):
            raise parsed.error(f"nothing of {host.name} was appended and not yet acknowledged")
        while parsed.get("all", False) and harness.acknowledge(host):
            pass
        context.say(_line(harness, host))
    harness.look()


@directive("hb-lose", "SESSION...", "The first message under way is lost before it reaches the broker.")
def hb_lose(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        at = next((at for at, message in enumerate(host.messages) if not message.appended), None)
        if at is None:
            raise parsed.error(f"nothing of {host.name} is under way to the broker")
        context.say(f"{host.name} loses {fact_text(host.messages.pop(at).fact)}")


@directive("fetch-send", "SESSION...", "The session asks for the decisions it has not read.")
def fetch_send(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        host.fetch = Fetch(harness.now_ms)


@directive(
    "fetch-serve",
    "SESSION...",
    "The broker answers with what is there now.",
    most=Argument(WHOLE, "so many decisions at most: the end is not reached"),
)
def fetch_serve(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if host.fetch is None:
            raise parsed.error(f"{host.name} has sent no fetch")
        harness.serve(host, parsed.find("most"))


@directive(
    "fetch-arrive", "SESSION...", "The answer arrives and is read.", lose=Argument(WHOLE, "number of a decision that its reader is never given")
)
def fetch_arrive(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if host.fetch is None or host.fetch.answer is None:
            raise parsed.error(f"nothing was served to {host.name}")
        _tell_arrival(context, harness, host, parsed)
    harness.look()


@directive(
    "fetch",
    "SESSION...",
    "Sent, served and read at once.",
    most=Argument(WHOLE, "so many decisions at most: the end is not reached"),
    lose=Argument(WHOLE, "number of a decision that its reader is never given"),
    again=Argument(WHOLE, "from this decision on, which it has read before"),
    short=Argument(WHOLE, "the broker has just become the leader, and does not know yet that so many last decisions are there"),
)
def fetch(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        host.fetch = Fetch(harness.now_ms)
        host.position = parsed.get("again", host.position + 1) - 1
        harness.serve(host, parsed.find("most"), parsed.get("short", 0))
        _tell_arrival(context, harness, host, parsed)
    harness.look()


def _tell_arrival(context: Context, harness: SessionHarness, host: Host, parsed: ParsedDirective) -> None:
    told = harness.arrive(host, (parsed.get("lose", 0),) if parsed.has("lose") else ())
    context.say(*filter(None, [told]), _line(harness, host))


@directive(
    "beat",
    "SESSION...",
    "A whole round trip at once: a fetch, then all that the session has to say, appended and acknowledged. `all`: every session that has not ended.",
)
def beat(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        _beat(harness, host)
        context.say(_line(harness, host))
    harness.look()


def _beat(harness: SessionHarness, host: Host, *, reads: bool = True, most: int | None = None) -> None:
    if reads:
        host.fetch = Fetch(harness.now_ms)
        harness.serve(host, most)
        harness.arrive(host)
    harness.send(host)
    while harness.append(host):
        pass
    while harness.acknowledge(host):
        pass


@directive(
    "pass",
    "SESSION...",
    "Time passes in steps; at each step these sessions beat and their hosts stop what they must. All others are silent. Steps that decide are told.",
    ms=Argument(WHOLE, "how long"),
    every_ms=Argument(WHOLE, "one step; 1000"),
    stops=Argument(YES_NO, "no: the hosts stop nothing"),
    deaf=Argument(NAMES, "sessions that send, and read nothing"),
    behind=Argument(NAMES, "sessions whose fetches are answered, and never reach the end"),
)
def pass_time(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    step_ms = parsed.get("every_ms", 1_000)
    context.refused = {}
    for _ in range(0, parsed.get("ms", 0), step_ms):
        harness.wait(step_ms)
        for host in _chosen(harness, parsed):
            if parsed.get("stops", True):
                for task in sorted(host.session.closing):
                    host.session.task_closed(task, harness.now_ms)
            _beat(harness, host, reads=host.name not in parsed.get("deaf", ()), most=0 if host.name in parsed.get("behind", ()) else None)
        harness.look()
    context.say(*(f"({count - 1} more times {code} for {name})" for (name, code), count in sorted(context.refused.items()) if count > 1))
    context.refused = None
    context.say(*(_line(harness, host) for _, host in sorted(harness.hosts.items())))


@directive("closed", "SESSION [TASKS]", "The host has stopped tasks (default: all that it must): nothing more is written there.")
def closed(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    host = _host(harness, parsed)
    tasks = _tasks(parsed) or tuple(sorted(host.session.closing))
    for task in tasks:
        host.session.task_closed(task, harness.now_ms)
    context.say(_line(harness, host))


@directive("copies", "SESSION", "How far behind the host's copies are now; 0 for a granted task means restored.", lags=Argument(LAGS, "copies"))
def copies(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    host = _host(harness, parsed)
    lags: dict[TaskId, Lag] = parsed.get("lags", {})
    for task, lag in lags.items():
        host.session.copy_progress(task, lag, harness.now_ms)
    harness.look()
    context.say(_line(harness, host))


@directive(
    "preparing",
    "SESSION",
    "What its application prepares now.",
    tasks=Argument(ENDS, "how far that is, in thousandths, by task"),
    failed=Argument(TASKS, "tasks whose last preparation failed"),
)
def preparing(context: Context, parsed: ParsedDirective) -> None:
    _host(_harness(context), parsed).session.note_preparing(dict(parsed.get("tasks", {})), parsed.get("failed", ()))


@directive("prepared", "SESSION [TASKS]", "Its application has prepared tasks (default: all that wait for that).")
def prepared(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    session = _host(harness, parsed).session
    for task in _tasks(parsed) or tuple(sorted(session.to_prepare())):
        if not session.declare_ready(task):
            raise parsed.error(f"nothing of {task} is to be kept there")


@directive("wants-out", "SESSION", "The session intends to leave.")
def wants_out(context: Context, parsed: ParsedDirective) -> None:
    _host(_harness(context), parsed).session.intend_leave()


@directive("close", "SESSION", "The session stops everything at once, and says MemberLeft when all is closed.")
def close(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    host = _host(harness, parsed)
    host.session.close(harness.now_ms)
    context.say(_line(harness, host))


@directive("gone", "SESSION...", "The session's process is killed: it says and does nothing any more.")
def gone(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        del harness.hosts[host.name]


@directive("sessions", "", "Every session: what it may process now and what not, and for how long its lease lasts.")
def sessions(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    context.say(*(_line(harness, host) for _, host in sorted(harness.hosts.items())))


def _tasks(parsed: ParsedDirective) -> tuple[TaskId, ...]:
    if len(parsed.directive.words) == 1:
        return ()
    try:
        found: tuple[TaskId, ...] = TASKS.read(parsed.directive.words[1])
    except InputError as error:
        raise parsed.error(str(error)) from None
    return found
