"""Directives for the member's own side: the real MemberSession, a clock, and a network whose every
message is moved by hand (docs/protocol.md, M4 and M5).

A heartbeat takes three directives (send, append, acknowledge), and so does a fetch (send, serve,
arrive); any time may pass between them. `beat` runs all six. After each directive, and during a
`wait` whenever a lease or a hold ends, the harness asks every session which tasks it may process.
A task that two sessions may process is shown as TWO OWNERS and fails the scenario, unless a rule
was dropped on purpose.
"""

from __future__ import annotations

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import Lag, TaskId
from equipoise.statemachine.member import MemberSession, MemberSettings
from tests.support.scenarios.argument_values import ENDS, LAGS, NAMES, TASKS, TEXT, WHOLE, YES_NO, one_of, tasks_text
from tests.support.scenarios.directives import directive
from tests.support.scenarios.parsed_directive import Argument, ParsedDirective
from tests.support.scenarios.render import by_task_text, fact_text
from tests.support.scenarios.scenario_context import Context
from tests.support.scenarios.session_harness import SIMPLER, Fetch, Host, SessionHarness
from tests.support.scenarios.text import ScenarioError
from tests.support.session_snapshots import restore, snapshot


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
    """``m1 epoch=2 may=(0_0) not=(0_1:hold) lease_ms=26990``. Asks a copy of the session, because
    the questions change its state.
    """
    session = restore(type(host.session), host.session.settings, snapshot(host.session))
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
    "Starts a real MemberSession: positions its decisions reader at the end, joins, and appends the join at once. The heartbeat interval is 1 ms.",
    incarnation=Argument(WHOLE, "number of the incarnation; default: one above the member's last. The second incarnation of m1 is named m1/2"),
    capacity=Argument(WHOLE, "number of threads; 1"),
    session_timeout_ms=Argument(WHOLE, "see `group`"),
    lease_margin_ms=Argument(WHOLE, "see `group`"),
    ended=Argument(WHOLE, "incarnation that the member proves dead ([M5](protocol.md#m5))"),
    ready_lag=Argument(WHOLE, "largest lag of a ready copy; default: the group's setting"),
    prepares=Argument(YES_NO, "yes: the application prepares tasks; a copy is ready only after `prepared`"),
    epoch=Argument(WHOLE, "topology epoch that the member runs; default: the newest"),
    nonce=Argument(TEXT, "join nonce; default: a new one"),
    copies=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "see `join`"),
    placed=Argument(YES_NO, "no: joins without positioning its reader first ([M1](protocol.md#m1))"),
    topic_ids=Argument(YES_NO, "no: its brokers have no topic ids, so the session cannot detect re-created topics by id ([L9](protocol.md#l9))"),
    remembers=Argument(YES_NO, "no: does not know the log of the member's last incarnation"),
    newer_from=Argument(
        WHOLE,
        "from this number on, a newer build writes the decisions, in versions unknown to this session ([M9](protocol.md#m9))",
    ),
    without=Argument(one_of(*SIMPLER), "drops this rule from the session, to show what goes wrong without it"),
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


@directive("wait", "", "Advances the sessions' clock and the broker's clock; nothing is sent.", ms=Argument(WHOLE, "duration"))
def wait(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    harness.wait(parsed.get("ms", 0))
    context.say(*(_line(harness, host) for _, host in sorted(harness.hosts.items())))


@directive(
    "failover",
    "",
    "Another broker takes over: append times jump; the sessions' clocks do not.",
    jump_ms=Argument(WHOLE, "size of the jump; negative: back in time"),
)
def failover(context: Context, parsed: ParsedDirective) -> None:
    context.group_harness.append_ms = max(0, context.group_harness.append_ms + parsed.get("jump_ms", 0))


@directive("hb-send", "SESSION...", "The session sends its pending messages and a heartbeat; they are in flight until `hb-append`.")
def hb_send(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        facts = harness.send(host)
        context.say(f"{host.name} sends {', '.join(fact_text(fact) for fact in facts) or 'nothing'}")
    harness.look()


@directive(
    "hb-append",
    "SESSION...",
    "The broker appends the session's next message in flight, and the leader folds it.",
    all=Argument(YES_NO, "yes: all messages, not only the first"),
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


@directive(
    "hb-ack",
    "SESSION...",
    "The acknowledgement of the session's first appended message arrives.",
    all=Argument(YES_NO, "yes: all messages, not only the first"),
)
def hb_ack(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if not harness.acknowledge(host):
            raise parsed.error(f"nothing of {host.name} was appended and not yet acknowledged")
        while parsed.get("all", False) and harness.acknowledge(host):
            pass
        context.say(_line(harness, host))
    harness.look()


@directive("hb-lose", "SESSION...", "The session's first message in flight is lost before it reaches the broker.")
def hb_lose(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        at = next((at for at, message in enumerate(host.messages) if not message.appended), None)
        if at is None:
            raise parsed.error(f"nothing of {host.name} is under way to the broker")
        context.say(f"{host.name} loses {fact_text(host.messages.pop(at).fact)}")


@directive("fetch-send", "SESSION...", "The session sends a fetch for the decisions it has not read.")
def fetch_send(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        host.fetch = Fetch(harness.now_ms)


@directive(
    "fetch-serve",
    "SESSION...",
    "The broker answers the fetch with the decisions that exist now.",
    most=Argument(WHOLE, "most decisions in the answer; with fewer than there are, the end is not reached"),
)
def fetch_serve(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if host.fetch is None:
            raise parsed.error(f"{host.name} has sent no fetch")
        harness.serve(host, parsed.find("most"))


@directive("fetch-arrive", "SESSION...", "The session receives the answer.", lose=Argument(WHOLE, "number of a decision that the answer omits"))
def fetch_arrive(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        if host.fetch is None or host.fetch.answer is None:
            raise parsed.error(f"nothing was served to {host.name}")
        _show_arrival(context, harness, host, parsed)
    harness.look()


@directive(
    "fetch",
    "SESSION...",
    "`fetch-send`, `fetch-serve` and `fetch-arrive` at once.",
    most=Argument(WHOLE, "most decisions in the answer; with fewer than there are, the end is not reached"),
    lose=Argument(WHOLE, "number of a decision that the answer omits"),
    again=Argument(WHOLE, "number of a decision, read before, at which the fetch starts"),
    short=Argument(WHOLE, "number of last decisions that the broker, a new partition leader, does not see yet"),
)
def fetch(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        host.fetch = Fetch(harness.now_ms)
        host.position = parsed.get("again", host.position + 1) - 1
        harness.serve(host, parsed.find("most"), parsed.get("short", 0))
        _show_arrival(context, harness, host, parsed)
    harness.look()


def _show_arrival(context: Context, harness: SessionHarness, host: Host, parsed: ParsedDirective) -> None:
    gap = harness.arrive(host, (parsed.get("lose", 0),) if parsed.has("lose") else ())
    context.say(*filter(None, [gap]), _line(harness, host))


@directive(
    "beat",
    "SESSION...",
    "A whole round trip at once: a fetch, then `hb-send`, and all its messages appended and acknowledged. `all`: every session that has not ended.",
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
    "Time passes in steps. At each step the named sessions beat and their hosts close revoked tasks; "
    "other sessions are silent. Steps that cause a decision are shown.",
    ms=Argument(WHOLE, "duration"),
    every_ms=Argument(WHOLE, "length of a step; 1000"),
    stops=Argument(YES_NO, "no: the hosts close nothing"),
    deaf=Argument(NAMES, "sessions that send but do not fetch"),
    behind=Argument(NAMES, "sessions whose fetches never reach the end"),
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


@directive("closed", "SESSION [TASKS]", "The host has closed tasks (default: all revoked ones) and writes nothing more for them.")
def closed(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    host = _host(harness, parsed)
    tasks = _tasks(parsed) or tuple(sorted(host.session.closing))
    for task in tasks:
        host.session.task_closed(task, harness.now_ms)
    context.say(_line(harness, host))


@directive("copies", "SESSION", "Sets the lag of the host's copies; 0 for a granted task means restored.", lags=Argument(LAGS, "lag of each copy"))
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
    "The tasks that the application prepares now.",
    tasks=Argument(ENDS, "progress by task, in thousandths"),
    failed=Argument(TASKS, "tasks whose last preparation failed"),
)
def preparing(context: Context, parsed: ParsedDirective) -> None:
    _host(_harness(context), parsed).session.note_preparing(dict(parsed.get("tasks", {})), parsed.get("failed", ()))


@directive("prepared", "SESSION [TASKS]", "The application has prepared tasks (default: all that wait for preparation).")
def prepared(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    session = _host(harness, parsed).session
    for task in _tasks(parsed) or tuple(sorted(session.to_prepare())):
        if not session.declare_ready(task):
            raise parsed.error(f"nothing of {task} is to be kept there")


@directive("wants-out", "SESSION", "The session intends to leave.")
def wants_out(context: Context, parsed: ParsedDirective) -> None:
    _host(_harness(context), parsed).session.intend_leave()


@directive("close", "SESSION", "The session closes all tasks at once and sends MemberLeft when they are closed.")
def close(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    host = _host(harness, parsed)
    host.session.close(harness.now_ms)
    context.say(_line(harness, host))


@directive("gone", "SESSION...", "The session's process is killed.")
def gone(context: Context, parsed: ParsedDirective) -> None:
    harness = _harness(context)
    for host in _chosen(harness, parsed):
        del harness.hosts[host.name]


@directive("sessions", "", "Shows every session: the tasks it may process, the tasks it may not, and the time left on its lease.")
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
