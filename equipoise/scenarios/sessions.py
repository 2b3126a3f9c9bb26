"""Directives for the member's own side: the real MemberSession, a clock, and a network whose every
message is moved by hand (PROTOCOL M4, M5).

A heartbeat is sent, appended and acknowledged; a fetch is sent, served and arrives: three lines
each, with any time between them. `beat` does all six at once. Whenever something happens, and at
every moment of a `wait` at which a lease ends or a hold is over, all sessions are asked which tasks
they may process; a task that two may process is told as TWO OWNERS, and is an error of the run
unless a rule was dropped on purpose.
"""

from __future__ import annotations

from equipoise.events.errors import FieldError, InputError
from equipoise.events.tasks import Lag, TaskId
from equipoise.scenarios.play import Play
from equipoise.scenarios.registry import directive
from equipoise.scenarios.render import by_task_text, fact_text
from equipoise.scenarios.said import Argument, Said
from equipoise.scenarios.text import ScenarioError
from equipoise.scenarios.theatre import SIMPLER, Fetch, Host, Theatre
from equipoise.scenarios.words import ENDS, LAGS, NAMES, TASKS, TEXT, WHOLE, YES_NO, one_of, tasks_text
from equipoise.statemachine.member import MemberSession, MemberSettings


def _theatre(play: Play) -> Theatre:
    if play.theatre is None:
        play.theatre = Theatre(play)
    return play.theatre


def _host(theatre: Theatre, said: Said) -> Host:
    found = theatre.hosts.get(said.member)
    if found is None:
        raise _no_such_session(theatre, said, said.member)
    return found


def _chosen(theatre: Theatre, said: Said) -> list[Host]:
    if said.directive.words == ("all",):
        return [host for _, host in sorted(theatre.hosts.items()) if host.session.ended is None]
    names = said.members()
    for name in names:
        if name not in theatre.hosts:
            raise _no_such_session(theatre, said, name)
    return [theatre.hosts[name] for name in names]


def _no_such_session(theatre: Theatre, said: Said, name: str) -> ScenarioError:
    return said.error(f"there is no session {name!r}; there are {', '.join(sorted(theatre.hosts)) or 'none'}")


def _line(theatre: Theatre, host: Host) -> str:
    """``m1 epoch=2 may=(0_0) not=(0_1:hold) lease_ms=26990``: asked in a copy, so that asking
    changes nothing.
    """
    session = type(host.session).restore(host.session.settings, host.session.snapshot())
    now_ms = theatre.now_ms
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
    ended=Argument(WHOLE, "the incarnation it proves dead (PROTOCOL M5)"),
    ready_lag=Argument(WHOLE, "a limit of its own: a copy with at most this lag is ready; default: the group's"),
    prepares=Argument(YES_NO, "yes: its application prepares tasks; no copy is ready before `prepared` says so"),
    epoch=Argument(WHOLE, "the topology epoch it runs; default: the newest"),
    nonce=Argument(TEXT, "join nonce; default: a new one"),
    copies=Argument(LAGS, "copies found on disk"),
    eager=Argument(YES_NO, "see `join`"),
    placed=Argument(YES_NO, "no: it joins without having placed its reader (PROTOCOL M1)"),
    topic_ids=Argument(YES_NO, "no: its brokers give topics no ids, so that it cannot tell re-created topics by them (PROTOCOL L9)"),
    remembers=Argument(YES_NO, "no: it does not know which log its member was in before"),
    newer_from=Argument(WHOLE, "decisions from this number on are written by a newer build, in versions it does not know (PROTOCOL M9)"),
    without=Argument(one_of(*SIMPLER), "a rule this session lacks, to see what the simpler design does"),
)
def session(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    topology = play.state.topology
    rule = said.get("without", "")
    kind = SIMPLER.get(rule, MemberSession)
    try:
        settings = MemberSettings(
            member_id=said.member,
            incarnation=said.get("incarnation", theatre.lives.get(said.member, 0) + 1),
            capacity=said.get("capacity", 1),
            session_timeout_ms=said.get("session_timeout_ms", play.defaults.session_timeout_ms),
            lease_margin_ms=said.get("lease_margin_ms", play.defaults.lease_margin_ms),
            topology_epoch=said.get("epoch", 0 if topology is None else topology.epoch),
            join_nonce=said.get("nonce", "") or play.next_nonce(),
            ended_incarnation=said.find("ended"),
            eager=said.get("eager", False),
            former_log_id=theatre.log_ids.get(said.member) if said.get("remembers", True) else None,
            heartbeat_interval_ms=1,
            ready_lag_records=said.find("ready_lag"),
            prepares=said.get("prepares", False),
            stateful_subtopologies=frozenset(part.subtopology for part in topology.subtopologies if part.stateful) if topology else frozenset(),
        )
    except FieldError as error:
        raise said.error(str(error)) from None
    host = Host(
        session=kind(settings),
        topic_ids=said.get("topic_ids", True),
        newer_from=said.find("newer_from"),
        places=said.get("placed", True),
        rule_dropped=rule,
    )
    theatre.hosts[host.name] = host
    on_disk: dict[TaskId, Lag] = said.get("copies", {})
    for task, lag in on_disk.items():
        host.session.copy_progress(task, lag, theatre.now_ms)
    try:
        theatre.join(host)
    except InputError as error:
        play.say(f"!! {host.name} does not join: {error}")
        del theatre.hosts[host.name]
        return
    theatre.lives[said.member] = settings.incarnation
    theatre.look()


@directive("wait", "", "Time passes for sessions and for the broker's clock; nothing is sent.", ms=Argument(WHOLE, "how long"))
def wait(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    theatre.wait(said.get("ms", 0))
    play.say(*(_line(theatre, host) for _, host in sorted(theatre.hosts.items())))


@directive(
    "failover",
    "",
    "Another broker takes over: from here on append times jump by so much; the sessions' clocks do not.",
    jump_ms=Argument(WHOLE, "forward, or back when below 0"),
)
def failover(play: Play, said: Said) -> None:
    play.stage.append_ms = max(0, play.stage.append_ms + said.get("jump_ms", 0))


@directive("hb-send", "SESSION...", "The session sends what it has to say: what is urgent, and a heartbeat. It is under way.")
def hb_send(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        facts = theatre.send(host)
        play.say(f"{host.name} sends {', '.join(fact_text(fact) for fact in facts) or 'nothing'}")
    theatre.look()


@directive(
    "hb-append",
    "SESSION...",
    "The broker appends the next message that is under way, and the leader folds it.",
    all=Argument(YES_NO, "all of them, not one"),
)
def hb_append(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        some = False
        while theatre.append(host):
            some = True
            if not said.get("all", False):
                break
        if not some:
            raise said.error(f"nothing of {host.name} is under way to the broker")
    theatre.look()


@directive("hb-ack", "SESSION...", "The acknowledgement of the first appended message arrives.", all=Argument(YES_NO, "all of them, not one"))
def hb_ack(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        if not theatre.acknowledge(host):
            raise said.error(f"nothing of {host.name} was appended and not yet acknowledged")
        while said.get("all", False) and theatre.acknowledge(host):
            pass
        play.say(_line(theatre, host))
    theatre.look()


@directive("hb-lose", "SESSION...", "The first message under way is lost before it reaches the broker.")
def hb_lose(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        at = next((at for at, message in enumerate(host.messages) if not message.appended), None)
        if at is None:
            raise said.error(f"nothing of {host.name} is under way to the broker")
        play.say(f"{host.name} loses {fact_text(host.messages.pop(at).fact)}")


@directive("fetch-send", "SESSION...", "The session asks for the decisions it has not read.")
def fetch_send(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        host.fetch = Fetch(theatre.now_ms)


@directive(
    "fetch-serve",
    "SESSION...",
    "The broker answers with what is there now.",
    most=Argument(WHOLE, "so many decisions at most: the end is not reached"),
)
def fetch_serve(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        if host.fetch is None:
            raise said.error(f"{host.name} has sent no fetch")
        theatre.serve(host, said.find("most"))


@directive(
    "fetch-arrive", "SESSION...", "The answer arrives and is read.", lose=Argument(WHOLE, "number of a decision that its reader is never given")
)
def fetch_arrive(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        if host.fetch is None or host.fetch.answer is None:
            raise said.error(f"nothing was served to {host.name}")
        _tell_arrival(play, theatre, host, said)
    theatre.look()


@directive(
    "fetch",
    "SESSION...",
    "Sent, served and read at once.",
    most=Argument(WHOLE, "so many decisions at most: the end is not reached"),
    lose=Argument(WHOLE, "number of a decision that its reader is never given"),
    again=Argument(WHOLE, "from this decision on, which it has read before"),
    short=Argument(WHOLE, "the broker has just become the leader, and does not know yet that so many last decisions are there"),
)
def fetch(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        host.fetch = Fetch(theatre.now_ms)
        host.position = said.get("again", host.position + 1) - 1
        theatre.serve(host, said.find("most"), said.get("short", 0))
        _tell_arrival(play, theatre, host, said)
    theatre.look()


def _tell_arrival(play: Play, theatre: Theatre, host: Host, said: Said) -> None:
    told = theatre.arrive(host, (said.get("lose", 0),) if said.has("lose") else ())
    play.say(*filter(None, [told]), _line(theatre, host))


@directive(
    "beat",
    "SESSION...",
    "A whole round trip at once: a fetch, then all that the session has to say, appended and acknowledged. `all`: every session that has not ended.",
)
def beat(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        _beat(theatre, host)
        play.say(_line(theatre, host))
    theatre.look()


def _beat(theatre: Theatre, host: Host, *, reads: bool = True, most: int | None = None) -> None:
    if reads:
        host.fetch = Fetch(theatre.now_ms)
        theatre.serve(host, most)
        theatre.arrive(host)
    theatre.send(host)
    while theatre.append(host):
        pass
    while theatre.acknowledge(host):
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
def pass_time(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    step_ms = said.get("every_ms", 1_000)
    play.refused = {}
    for _ in range(0, said.get("ms", 0), step_ms):
        theatre.wait(step_ms)
        for host in _chosen(theatre, said):
            if said.get("stops", True):
                for task in sorted(host.session.closing):
                    host.session.task_closed(task, theatre.now_ms)
            _beat(theatre, host, reads=host.name not in said.get("deaf", ()), most=0 if host.name in said.get("behind", ()) else None)
        theatre.look()
    play.say(*(f"({count - 1} more times {code} for {name})" for (name, code), count in sorted(play.refused.items()) if count > 1))
    play.refused = None
    play.say(*(_line(theatre, host) for _, host in sorted(theatre.hosts.items())))


@directive("closed", "SESSION [TASKS]", "The host has stopped tasks (default: all that it must): nothing more is written there.")
def closed(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    host = _host(theatre, said)
    tasks = _tasks(said) or tuple(sorted(host.session.closing))
    for task in tasks:
        host.session.task_closed(task, theatre.now_ms)
    play.say(_line(theatre, host))


@directive("copies", "SESSION", "How far behind the host's copies are now; 0 for a granted task means restored.", lags=Argument(LAGS, "copies"))
def copies(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    host = _host(theatre, said)
    lags: dict[TaskId, Lag] = said.get("lags", {})
    for task, lag in lags.items():
        host.session.copy_progress(task, lag, theatre.now_ms)
    theatre.look()
    play.say(_line(theatre, host))


@directive(
    "preparing",
    "SESSION",
    "What its application prepares now.",
    tasks=Argument(ENDS, "how far that is, in thousandths, by task"),
    failed=Argument(TASKS, "tasks whose last preparation failed"),
)
def preparing(play: Play, said: Said) -> None:
    _host(_theatre(play), said).session.note_preparing(dict(said.get("tasks", {})), said.get("failed", ()))


@directive("prepared", "SESSION [TASKS]", "Its application has prepared tasks (default: all that wait for that).")
def prepared(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    session = _host(theatre, said).session
    for task in _tasks(said) or tuple(sorted(session.to_prepare())):
        if not session.declare_ready(task):
            raise said.error(f"nothing of {task} is to be kept there")


@directive("wants-out", "SESSION", "The session intends to leave.")
def wants_out(play: Play, said: Said) -> None:
    _host(_theatre(play), said).session.intend_leave()


@directive("close", "SESSION", "The session stops everything at once, and says MemberLeft when all is closed.")
def close(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    host = _host(theatre, said)
    host.session.close(theatre.now_ms)
    play.say(_line(theatre, host))


@directive("gone", "SESSION...", "The session's process is killed: it says and does nothing any more.")
def gone(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    for host in _chosen(theatre, said):
        del theatre.hosts[host.name]


@directive("sessions", "", "Every session: what it may process now and what not, and for how long its lease lasts.")
def sessions(play: Play, said: Said) -> None:
    theatre = _theatre(play)
    play.say(*(_line(theatre, host) for _, host in sorted(theatre.hosts.items())))


def _tasks(said: Said) -> tuple[TaskId, ...]:
    if len(said.directive.words) == 1:
        return ()
    try:
        found: tuple[TaskId, ...] = TASKS.read(said.directive.words[1])
    except InputError as error:
        raise said.error(str(error)) from None
    return found
