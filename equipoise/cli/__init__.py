"""The command line: `equipoise COMMAND ...`.

Each command is one module of this package. `equipoise.cli.command.command` makes the module's
function a click command, and `COMMANDS` lists it. A module is imported when its command is used,
and imports slow packages inside the function.

Scripts rely on: ``--json`` prints one JSON document on stdout and nothing else there
(docs/json.md); exit codes 0 (it holds, or is done), 1 (the answer is no), 2 (bad input or usage:
one line on stderr names the place and the fix), 70 (a defect of equipoise), 74 (no space left), 130
(SIGINT), 143 (SIGTERM).
"""

from __future__ import annotations

from equipoise.cli.command_group import CommandGroup

COMMANDS = {
    "demo": "equipoise.cli.demo:demo",
    "import": "equipoise.cli.import_:import_",
    "simulate": "equipoise.cli.simulate:simulate",
    "compare": "equipoise.cli.compare:compare",
    "what-if": "equipoise.cli.what_if:what_if",
    "verify": "equipoise.cli.verify:verify",
    "explain": "equipoise.cli.explain:explain",
    "show": "equipoise.cli.show:show",
    "timeline": "equipoise.cli.timeline:timeline",
    "scale-down": "equipoise.cli.scale_down:scale_down",
    "assign": "equipoise.cli.assign:assign",
    "scenario": "equipoise.cli.scenario:scenario",
    "worker": "equipoise.cli.worker:worker",
    "run": "equipoise.cli.run:run",
    "witness": "equipoise.cli.run:witness",
    "lead": "equipoise.cli.lead:lead",
    "adopt": "equipoise.cli.adopt:adopt",
    "release": "equipoise.cli.adopt:release",
    "remove-member": "equipoise.cli.remove_member:remove_member",
    "doctor": "equipoise.cli.doctor:doctor",
    "groups": "equipoise.cli.groups:groups",
    "status": "equipoise.cli.groups:status",
    "configure": "equipoise.cli.configure:configure",
    "deal": "equipoise.cli.deal:deal",
    "tail": "equipoise.cli.tail:tail",
    "shadow": "equipoise.cli.shadow:shadow",
    "archive": "equipoise.cli.archive:archive",
    "cluster": "equipoise.cli.cluster:cluster",
    "record": "equipoise.cli.record:record",
    "incident": "equipoise.cli.incident:incident",
    "compact": "equipoise.cli.archive:compact",
    "restore": "equipoise.cli.restore:restore",
    "fleet": "equipoise.cli.fleet:fleet",
    "spark": "equipoise.cli.spark:spark",
}
"""Command -> ``module:attribute``, in the order `equipoise --help` lists them."""

main = CommandGroup(
    name="equipoise",
    commands_by_place=COMMANDS,
    help="""Lead stream-processing groups: which member runs which task, when a task may move, and why.

    A stateful task that moves to a member without its state stops for minutes. equipoise moves the state first and the work second. It writes every
    decision to a log, and answers from that log: what was decided, why, and what other settings would have cost.

    Start with `equipoise demo`. A LOG is a path or URL: group.db or sqlite:///... (SQLite), group.jsonl (JSON Lines),
    archive/ or s3://bucket/archive/ (a Parquet dataset), kafka://host:port[/prefix] (Kafka). Left out, it is the log at the
    brokers that the environment variable EQUIPOISE_BOOTSTRAP=host:port names, which every command takes.
    """,
    epilog="`equipoise COMMAND --help` shows examples. Exit codes: 0 it holds or is done, 1 the answer is no, 2 bad input or usage.",
)

__all__ = ["COMMANDS", "main"]
