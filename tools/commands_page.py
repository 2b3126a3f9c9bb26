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
from equipoise.kafka.connection import Connection

HEAD = """# Commands

This page is made from the commands by `make commands`; do not edit it. `equipoise COMMAND --help`
prints the same. What `--json` prints is in [json.md](json.md), what the exit codes mean in
[architecture.md](architecture.md#the-command-line-and-the-library). An option that is a setting of
a connection or a worker is also an environment variable: `EQUIPOISE_` and its name in capitals.
"""
CONNECTION = """## Connection

The options of every command that talks to brokers.
"""
SHARED = """## Options of several commands

A command names those that it takes.
"""
COMMON = """## Every command

`--json` is an option of every command that has a schema in [json.md](json.md).
"""

COMPLETION = """## Completion

Tab completes commands and options in bash, zsh and fish. Put the line of your shell into its start
file:

```bash
eval "$(_EQUIPOISE_COMPLETE=bash_source equipoise)"     # ~/.bashrc
eval "$(_EQUIPOISE_COMPLETE=zsh_source equipoise)"      # ~/.zshrc
_EQUIPOISE_COMPLETE=fish_source equipoise | source      # ~/.config/fish/config.fish
```
"""


def render() -> str:
    """The whole page."""
    context = click.Context(main, info_name="equipoise", **CONTEXT_SETTINGS)
    shared = _shared(main, context)
    chapters = list(_chapters(main, context, [_row(option) for option in shared]))
    tables = [SHARED, _table(shared), CONNECTION, _table(_connection_options()), COMMON, _table(_every_command(context)), COMPLETION]
    return "\n".join([HEAD, _contents(), *chapters, *tables])


def _contents() -> str:
    lines = [f"{count()} commands:\n"]
    for heading, names in main.sections.items():
        links = ", ".join(f"[{name}](#equipoise-{name})" for name in names)
        lines += textwrap.wrap(f"- {heading}: {links}", 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, ""])


def count() -> int:
    """Commands, those of `equipoise spark` each for itself."""
    return len(COMMANDS) - 1 + len(SPARK_COMMANDS)


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Every command of the group, and those below it."""
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        assert each is not None
        below = click.Context(each, info_name=name, parent=context)
        yield each, below
        if isinstance(each, click.Group):
            yield from _commands(each, below)


def _own(shown: click.Command, context: click.Context) -> list[click.Parameter]:
    """Options that are neither of a connection nor of every command."""
    others = [option.to_info_dict() for option in [*_connection_options(), *_every_command(context)]]
    return [option for option in shown.params if isinstance(option, click.Option) and option.to_info_dict() not in others]


def _shared(group: click.Group, context: click.Context) -> list[click.Parameter]:
    """Options that three commands or more have with the same words."""
    options = [option for each, below in _commands(group, context) for option in _own(each, below)]
    rows = [_row(option) for option in options]
    return [option for number, option in enumerate(options) if rows.count(rows[number]) > 2 and rows[number] not in rows[:number]]


def _chapters(group: click.Group, context: click.Context, shared: Sequence[str]) -> Iterator[str]:
    for each, below in _commands(group, context):
        yield _chapter(each, below, shared)


def _chapter(shown: click.Command, context: click.Context, shared: Sequence[str]) -> str:
    level = "#" * (context.command_path.count(" ") + 1)
    usage = " ".join([context.command_path, *shown.collect_usage_pieces(context)])
    lines = [f"{level} `{context.command_path}`\n", f"`{usage}`\n"]
    prose, _, examples = inspect.cleandoc(shown.help or "").partition("\b\nExamples:\n")
    lines += [
        f"{textwrap.fill(_markdown(' '.join(paragraph.split())), 100, break_long_words=False, break_on_hyphens=False)}\n"
        for paragraph in prose.split("\n\n")
        if paragraph.strip()
    ]
    if examples:
        lines.append(f"```sh\n{textwrap.dedent(examples).strip()}\n```\n")
    own = _own(shown, context)
    if alone := [option for option in own if _row(option) not in shared]:
        lines.append(_table(alone))
    also = [f"`{option.opts[0]}`" for option in own if _row(option) in shared]
    also[:1] = [f"[{each}](#options-of-several-commands)" for each in also[:1]]
    if any(option.name == "bootstrap" for option in shown.params):
        also.append("[connection](#connection)")
    if also:
        lines.append(textwrap.fill(f"Also: {', '.join(also)}.", 100, break_long_words=False, break_on_hyphens=False) + "\n")
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
    return "\n".join(["| option | meaning |", "|---|---|", *(_row(option) for option in options), ""])


def _row(option: click.Parameter) -> str:
    record = option.get_help_record(click.Context(click.Command("page")))
    assert record is not None, option.name
    names, text = record
    text = re.sub(r"\[EQUIPOISE_[A-Z_]+; ", "[", text)
    text = re.sub(r" *\[EQUIPOISE_[A-Z_]+\]$", "", text)
    return f"| `{_cell(names.removesuffix(' VALUE'))}` | {_markdown(_cell(text))} |"


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
