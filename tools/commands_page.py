"""The commands and their options as Markdown for `docs/commands.md`, from the commands themselves.
`make commands` writes the page, and a test keeps the two equal.
"""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

import click

from equipoise.cli import COMMANDS, main
from equipoise.cli.command import CONTEXT_SETTINGS, command
from equipoise.cli.settings_options import settings_options
from equipoise.cli.spark import SPARK_COMMANDS
from equipoise.events.log.kafka.connection import Connection

HEAD = """# Commands

This page is made from the commands by `make commands`; do not edit it. `equipoise COMMAND --help`
prints the same. What `--json` prints is in [json.md](json.md), what the exit codes mean in
[architecture.md](architecture.md#the-command-line-and-the-library).
"""
CONNECTION = """## Connection

Commands that talk to brokers take these options, each also as an environment variable.
"""
COMMON = """## Every command

`--json` is an option of every command that has a schema in [json.md](json.md).
"""


def render() -> str:
    """The whole page."""
    context = click.Context(main, info_name="equipoise", **CONTEXT_SETTINGS)
    chapters = list(_chapters(main, context))
    return "\n".join([HEAD, _contents(context), *chapters, CONNECTION, _table(_connection_options()), COMMON, _table(_every_command(context))])


def _contents(context: click.Context) -> str:
    lines = [f"{count()} commands:\n"]
    for heading, names in main.sections.items():
        lines += [f"| {heading} | |", "|---|---|"]
        for name in names:
            each = main.get_command(context, name)
            assert each is not None
            lines.append(f"| [{name}](#equipoise-{name}) | {_markdown(_cell(each.get_short_help_str(200)))} |")
        lines.append("")
    return "\n".join(lines)


def count() -> int:
    """Commands, those of `equipoise spark` each for itself."""
    return len(COMMANDS) - 1 + len(SPARK_COMMANDS)


def _chapters(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        assert each is not None
        below = click.Context(each, info_name=name, parent=context)
        yield _chapter(each, below)
        if isinstance(each, click.Group):
            yield from _chapters(each, below)


def _chapter(shown: click.Command, context: click.Context) -> str:
    level = "#" * (context.command_path.count(" ") + 1)
    usage = " ".join([context.command_path, *shown.collect_usage_pieces(context)])
    lines = [f"{level} `{context.command_path}`\n", f"```text\n{usage}\n```\n"]
    prose, _, examples = inspect.cleandoc(shown.help or "").partition("\b\nExamples:\n")
    lines += [f"{textwrap.fill(_markdown(' '.join(paragraph.split())), 100, break_long_words=False, break_on_hyphens=False)}\n"
              for paragraph in prose.split("\n\n") if paragraph.strip()]  # fmt: skip
    if examples:
        lines.append(f"```sh\n{textwrap.dedent(examples).strip()}\n```\n")
    shared = [option.to_info_dict() for option in [*_connection_options(), *_every_command(context)]]
    own = [option for option in shown.params if isinstance(option, click.Option) and option.to_info_dict() not in shared]
    if own:
        lines.append(_table(own))
    if any(option.name == "bootstrap" for option in shown.params):
        lines.append(f"{'And' if own else 'It takes'} the options of a [connection](#connection).\n")
    return "\n".join(lines)


def _connection_options() -> list[click.Parameter]:
    @click.command("page")
    @settings_options(Connection)
    def page(settings: Connection) -> None: ...

    return page.params


def _every_command(context: click.Context) -> list[click.Parameter]:
    shown = context.command.get_help_option(context)
    assert shown is not None
    with_json = command("page")(lambda screen: None)
    return [*with_json.params, shown]


def _table(options: Sequence[click.Parameter]) -> str:
    lines = ["| option | meaning |", "|---|---|"]
    for option in options:
        record = option.get_help_record(click.Context(click.Command("page")))
        assert record is not None, option.name
        names, text = record
        lines.append(f"| `{_cell(names)}` | {_markdown(_cell(text))} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _markdown(text: str) -> str:
    """Names of options, variables and settings as code, pages as links, and the rest escaped."""
    prose, code = text.split("`")[::2], text.split("`")[1::2]
    for number, part in enumerate(prose):
        part = re.sub(r"[*<\[\]]", r"\\\g<0>", part)
        part = re.sub(r"(?<![\w-])(--[a-z][\w-]*|[A-Z]+(?:_[A-Z]+)+|[a-z0-9]+(?:_[a-z0-9]+)+(?:=\w+)?)(?!\w)", r"`\1`", part)
        prose[number] = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", part)
    return "".join(itertools.chain(*zip(prose, (f"`{each}`" for each in code), strict=False), prose[len(code) :]))


if __name__ == "__main__":
    print(render(), end="")
