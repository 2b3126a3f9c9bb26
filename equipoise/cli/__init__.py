"""The command line: `equipoise COMMAND ...`.

Each command is one module of this package. `equipoise.cli.command.command` makes the module's
function a click command, and `SECTIONS` lists it. A module is imported when its command is used,
and imports slow packages inside the function.

Scripts rely on: ``--json`` prints one JSON document on stdout and nothing else there
(docs/json.md); exit codes 0 (it holds, or is done), 1 (the answer is no), 2 (bad input or usage:
one line on stderr names the place and the fix), 70 (a defect of equipoise), 74 (no space left), 130
(SIGINT), 143 (SIGTERM).
"""

from __future__ import annotations

from equipoise.cli.command_group import CommandGroup

SECTIONS = {
    "Ask a log": {
        "demo": "equipoise.cli.demo:demo",
        "status": "equipoise.cli.status:status",
        "explain": "equipoise.cli.explain:explain",
        "timeline": "equipoise.cli.timeline:timeline",
        "tail": "equipoise.cli.tail:tail",
        "verify": "equipoise.cli.verify:verify",
        "size": "equipoise.cli.size:size",
        "what-if": "equipoise.cli.what_if:what_if",
    },
    "Run a group": {
        "worker": "equipoise.cli.worker:worker",
        "witness": "equipoise.cli.witness:witness",
        "configure": "equipoise.cli.configure:configure",
        "scale-down": "equipoise.cli.scale_down:scale_down",
        "doctor": "equipoise.cli.doctor:doctor",
    },
    "Any group of a Kafka cluster": {
        "cluster": "equipoise.cli.cluster:cluster",
        "record": "equipoise.cli.record:record",
        "incident": "equipoise.cli.incident:incident",
        "lead": "equipoise.cli.lead:lead",
        "migrate": "equipoise.cli.migrate:migrate",
    },
    "Files, and many groups at once": {
        "import": "equipoise.cli.import_:import_",
        "archive": "equipoise.cli.archive:archive",
        "spark": "equipoise.cli.spark:spark",
    },
}
"""Heading of `equipoise --help` -> command -> ``module:attribute``, in its order."""

COMMANDS = {name: place for commands in SECTIONS.values() for name, place in commands.items()}

main = CommandGroup(
    name="equipoise",
    sections=SECTIONS,
    help="""Lead stream-processing groups, and ask why each task is where it is. A LOG is group.db, group.jsonl, archive/, s3://bucket/archive/
    or kafka://host:port; left out, the log at EQUIPOISE_BOOTSTRAP=host:port. Exit codes: 0 it holds or is done, 1 the answer is no, 2 bad input.
    """,
)

__all__ = ["COMMANDS", "SECTIONS", "main"]
