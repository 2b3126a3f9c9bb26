"""`equipoise demo`: a first look, on recorded data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Line, Part, Screen, Styled, bold
from equipoise.replay.numbers import MOVES, UNAVAILABLE
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.cli.demo_steps import Explained, Imported, Simulated, Step

_MOST_SENTENCES = 3
_ABOUT = {
    "scale-out": "no standbys; instances are added, one is killed and comes back, one is closed",
    "rolling": "one standby a task; instances are bounced, one loses its disk, one leaves",
}


@command("demo", short_help="Start here: recorded groups, led again by equipoise.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"), show_default=True, help="Folder for logs and pictures.")
def demo(screen: Screen, out: Path) -> int:
    """Import two recorded runs of a real Kafka Streams group. Simulate the same inputs (process
    starts, kills and closes, changelog growth) twice: as the group was led, and with equipoise
    leading. Show what was measured and what both cost, that every decision replays to the byte, why
    one task moved, and a picture of both. The demo needs no Kafka and no network, and takes some
    seconds.

    \b
    Examples:
      equipoise demo
      equipoise demo --out /tmp/demo
    """
    from equipoise.cli.demo_steps import Drawn, Explained, Imported, Simulated, run_demo, step_document  # loads the solver

    documents: dict[str, dict[str, Any]] = {}
    identical = True
    steps: list[Step] = []
    if not screen.json:
        screen.answer(None, *introduction())
    for step in run_demo(out):
        steps.append(step)
        if isinstance(step, Simulated):
            identical = identical and step.verification.verdict.exit_code == 0
        name = {Imported: "recorded", Simulated: "equipoise", Explained: "explained", Drawn: "drawn"}[type(step)]
        documents.setdefault(step.run, dict.fromkeys(("recorded", "equipoise", "explained", "drawn")))[name] = step_document(step)
        if not screen.json:
            screen.answer(None, *step_parts(step, first=steps[0].run))
    if screen.json:
        screen.answer({"identical": identical, "runs": documents})
    else:
        screen.answer(None, *next_steps(steps))
    return 0 if identical else 1


def introduction() -> list[Part]:
    return [
        Line(bold("equipoise demo")),
        "A real Kafka Streams group (4.3.1, 26 tasks, 20 of them with state), recorded twice; then the same inputs, led by equipoise.",
        f"{UNAVAILABLE}: no record of a task processed for over 1 s; for good: it has another owner at the end; fewest: {MOVES} that balance needs",
        "Members of equipoise say that they close, and whether they will be back.",
    ]


def step_parts(step: Step, first: str) -> list[Part]:
    """Returns what one step found, as text and tables. A move is explained in the run `first`."""
    from equipoise.cli.demo_steps import Explained, Imported, Simulated

    if isinstance(step, Imported):
        return imported_parts(step)
    if isinstance(step, Simulated):
        return simulated_parts(step)
    return explained_parts(step) if isinstance(step, Explained) and step.run == first else []


def imported_parts(step: Imported) -> list[Part]:
    summary = step.summary
    what = f"{span_text(summary.length_ms)}, {counted(summary.generations, 'generation')}"
    return ["", Line(bold(f"{step.run}: {_ABOUT.get(step.run, 'a recorded run')}")), f"{what}; imported to {step.log}"]


def simulated_parts(step: Simulated) -> list[Part]:
    from equipoise.cli.demo_steps import SEEDS
    from equipoise.cli.simulation import cost_table

    verification = step.verification
    compared, facts = sum(group.compared for group in verification.groups), sum(group.facts for group in verification.groups)
    identical = verification.verdict.exit_code == 0
    verdict = Styled(verification.verdict.value, bold=True, colour="green" if identical else "red")
    summary = f"{counted(compared, 'decision')} on {counted(facts, 'fact')} in {step.log}, recomputed and compared byte for byte: "
    return [cost_table(step.costs, f"mean of {len(SEEDS)} seeds"), Line(summary, verdict), *verification.problems]


def explained_parts(step: Explained) -> list[Part]:
    explanation = step.explanation
    move = explanation.moves[-1]
    spent = {state: move.spent_ms(state, explanation.append_ms) for state in ("waiting", "warming", "revoking")}
    words = {
        "waiting": "waited for a warm-up slot",
        "warming": f"warmed up on {move.destination} while {move.source} ran it",
        "revoking": "was handed over in",
    }
    states = ", ".join(
        f"{words[state]} {span_text(ms)}" if state == "revoking" else f"{words[state]} for {span_text(ms)}" for state, ms in spent.items() if ms
    )
    restored = "" if not move.restored_records else f", {counted(move.restored_records, 'record')} restored"
    return [
        Line(bold(f"why did {explanation.task} move from {move.source} to {move.destination}?")),
        *(f"  {sentence}" for sentence in explanation.why_here[:_MOST_SENTENCES]),
        f"  It {states}{restored}.",
    ]


def next_steps(steps: Iterable[Step]) -> list[Part]:
    from equipoise.cli.demo_steps import Explained, Simulated

    log, *_ = (step.log for step in steps if isinstance(step, Simulated))
    task = next((step.explanation.task for step in steps if isinstance(step, Explained)), "0_0")
    recorded, another = log.with_name("recorded.db"), log.with_name("max_warmups_4.db")
    commands = (
        (f"equipoise explain {log} --task {task}", "why it is where it is, how it came there, what is next"),
        (f"equipoise status {recorded} --at 300", "the group's state in the middle of it"),
        (f"equipoise what-if {recorded} --to {another} --set max_warmups=4", "the same inputs under another setting"),
        ("equipoise import kafka-streams DUMP --to group.db", "a group of your own"),
    )
    width = max(len(line) for line, _ in commands)
    pages = f"pages and pictures of both, led by Kafka Streams and by equipoise: {log.parent.parent}/*/*.html, *.svg"
    return ["", pages, Line(bold("next")), *(f"  {line:<{width}}  {what}" for line, what in commands)]
