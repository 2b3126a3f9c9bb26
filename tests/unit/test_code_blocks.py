"""Every block of code of every page is run: each is named here with the test that runs it, and
those of a shell are parsed by the commands that they name.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from equipoise import Assignor, GroupConfigured, GroupMachine, Member
from equipoise.assignors.high_availability import HighAvailability
from equipoise.bridge.mapping import answer_of
from equipoise.bridge.question import read_question
from equipoise.cli import main
from equipoise.cli.params import LOG
from equipoise.events.decisions import RoundPlanned
from equipoise.events.records import FactRecord
from equipoise.hosting.live_settings import read_settings
from equipoise.lead.broker_seat.ways import CLASS, SETTING, STREAMS_CLASS, STREAMS_SETTING
from equipoise.replay import spark
from equipoise.replay.spark.timeline import TABLES
from equipoise.testing import CONTRACT
from equipoise.worker.settings import WorkerSettings
from tests.pages import check_place
from tests.support.assign_json import assign_line
from tests.support.scenarios import run_text
from tests.typed import ROOT, Block, blocks, clone, run
from tools.commands_page import render

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
HERE = "tests/unit/test_code_blocks.py"
APPLICATIONS = "tests/unit/test_applications_docs.py"
ASSIGNORS = "tests/unit/test_assignors_docs.py"
SHELLS = f"{HERE}::test_shell_block_has_commands_that_exist_with_options_that_they_take"
TUTORIAL = "tests/unit/test_tutorial_docs.py::test_numbers_and_commands_of_the_replay"
TUTORIAL_LIVE = "tests/live/test_quickstart.py::test_live_half_of_the_tutorial_runs_and_prints_what_the_page_shows"
SITE = "tests/unit/test_site.py::test_library_pages_have_every_public_name_once"

RUN_BY = {
    ("docs/api.md", "{eval-rst}", ""): SITE,
    ("docs/api-assignors.md", "{eval-rst}", ""): SITE,
    ("docs/api-replay.md", "{eval-rst}", ""): SITE,
    ("docs/api-testing.md", "{eval-rst}", ""): SITE,
    ("docs/adopt-aiokafka.md", "python", "from aiokafka"): "tests/unit/test_adopt_aiokafka_docs.py::test_code_of_the_page_makes_a_consumer",
    ("docs/adopt.md", "python", "from equipoise"): f"{HERE}::test_member_that_adopts_a_group_is_one",
    ("docs/adopt.md", "text", "group orders"): "tests/live/test_adopt.py::test_application_moves_to_members_and_back_and_each_record_counts_once",
    ("docs/applications.md", "python", ""): f"{APPLICATIONS}::test_code_of_the_page_passes_strict_mypy_and_a_misspelt_option_does_not",
    ("docs/applications-by-task.md", "python", ""): f"{APPLICATIONS}::test_code_of_the_page_passes_strict_mypy_and_a_misspelt_option_does_not",
    ("docs/architecture.md", "", "events/"): "tests/unit/test_architecture_docs.py::test_tree_names_every_package_once",
    ("docs/architecture.md", "python", "machine ="): f"{HERE}::test_core_contract_of_the_architecture_page_holds",
    ("docs/architecture.md", "python", "class Assignor"): f"{HERE}::test_assignor_of_the_architecture_page_is_the_protocol",
    ("docs/assignors.md", "", "python -m bench"): SHELLS,
    ("docs/assignors.md", "python", "from aiokafka"): f"{ASSIGNORS}::test_aiokafka_strategy_of_the_page_takes_its_options",
    ("docs/assignors.md", "json", '"rack_cost"'): f"{HERE}::test_plan_has_the_proofs_that_the_page_shows",
    ("docs/assignors.md", "toml", ""): "tests/properties/test_third_party.py::stay_put",
    ("docs/assignors.md", "python", '"""stay_put.py'): "tests/properties/test_third_party.py::stay_put",
    ("docs/assignors.md", "python", "import pytest"): f"{HERE}::test_contract_of_the_page_is_that_of_the_library",
    ("docs/faust.md", "python", "app ="): f"{HERE}::test_application_of_the_faust_page_takes_the_assignor",
    ("docs/incidents.md", "text", "when"): "tests/unit/replay/test_incidents.py::test_page_shows_what_the_command_prints",
    ("docs/incidents.md", "text", "  simulated as it was:"): "tests/unit/replay/test_incidents.py::test_command_simulates_a_recorded_application",
    ("docs/operations.md", "", "orders  round"): "tests/unit/equipoise/test_live_status.py::test_operations_page_shows_a_view_as_it_is_drawn",
    ("docs/commands.md", "bash", "eval"): f"{HERE}::test_shells_complete_commands_by_the_lines_of_the_page",
    ("docs/deploy.md", "", "group orders: "): f"{HERE}::test_lines_of_the_log_are_those_of_the_code",
    ("docs/restarts.md", "", "group orders: "): f"{HERE}::test_lines_of_the_log_are_those_of_the_code",
    ("docs/deploy.md", "toml", "# worker.toml"): f"{HERE}::test_worker_takes_the_settings_file",
    ("docs/deploy.md", "properties", "listeners"): f"{HERE}::test_secured_broker_has_the_properties_of_the_page",
    ("docs/restarts.md", "python", "member = Member"): f"{HERE}::test_members_of_the_restarts_page_take_their_options",
    ("docs/restarts.md", "python", "async def prepare"): f"{HERE}::test_members_of_the_restarts_page_take_their_options",
    ("docs/restarts.md", "dockerfile", "ENTRYPOINT"): f"{HERE}::test_entry_point_of_the_container_is_a_command",
    ("docs/protocol.md", "", "fact 0"): "tests/unit/test_protocol_exchange.py::test_worked_exchange_equals_the_written_records",
    ("docs/scenarios.md", "text", ""): f"{HERE}::test_scenario_of_the_page_holds",
    ("docs/seat.md", "properties", ""): f"{HERE}::test_properties_of_the_seat_page_are_those_of_the_assignor_inside_brokers",
    ("docs/seat.md", "yaml", ""): f"{HERE}::test_properties_of_the_seat_page_are_those_of_the_assignor_inside_brokers",
    ("docs/spark.md", "sql", "-- the longest"): f"{HERE}::test_query_of_the_spark_page_names_columns_of_its_table",
    ("docs/spark.md", "sql", "-- which"): "tests/spark/test_format.py::test_blocks_of_the_page_run",
    ("docs/spark.md", "python", "from equipoise.replay.spark.source"): "tests/spark/test_format.py::test_blocks_of_the_page_run",
    ("docs/spark.md", "python", "from equipoise import replay"): f"{HERE}::test_notebook_of_the_spark_page_answers",
    ("docs/spark.md", "", "g000"): "tests/unit/test_replay_example.py::test_replay_example_output_equals_the_docs",
    ("docs/states.md", "mermaid", ""): "tests/unit/test_state_diagram.py::test_page_is_generated_from_the_table",
    ("docs/streams.md", "properties", ""): f"{HERE}::test_properties_of_the_streams_page_are_those_of_its_class",
    ("docs/streams.md", "json", ""): f"{HERE}::test_question_and_answer_of_the_streams_page_are_sound",
    ("docs/tutorial.md", "text", "what each action cost"): TUTORIAL,
    ("docs/tutorial.md", "text", "identical"): TUTORIAL,
    ("docs/tutorial.md", "text", "Why is 0_1 on i2"): TUTORIAL,
    ("docs/tutorial.md", "text", ""): TUTORIAL_LIVE,
    ("docs/what-if.md", "toml", ""): "tests/unit/test_what_if_docs.py::test_what_if_toml_of_the_page_is_valid",
    ("docs/what-if.md", "", "# Kafka Streams"): f"{HERE}::test_lines_for_streams_properties_are_what_the_command_prints",
    ("docs/what-if.md", "python", ""): "tests/unit/test_what_if_docs.py::test_what_if_python_of_the_page_runs",
}
"""Page, kind and beginning of a block -> the test that runs it. The first that fits counts."""

DRAWINGS = ("   facts ",)
"""How blocks begin that are pictures."""

PROGRAMS = {
    "acl",
    "bash",
    "cat",
    "cd",
    "do",
    "docker",
    "done",
    "duckdb",
    "echo",
    "export",
    "for",
    "grep",
    "jobs",
    "jq",
    "kafka-acls.sh",
    "kafka-configs.sh",
    "kafka-transactions.sh",
    "kill",
    "kubectl",
    "member",
    "mkdir",
    "mvn",
    "pip",
    "rm",
    "set",
    "shift",
    "sleep",
    "spark-submit",
    "systemctl",
    "towncrier",
    "tr",
    "venv-pack",
    "wait",
}
"""What shells of the pages run beside equipoise, make and python, by their names without folders.
"""
READERS = {"consume.py", "members.py", "orders.py", "send.py", "spending.py"}
"""Programs of the reader."""


def is_shell(block: Block) -> bool:
    return block.kind == "sh"


def every_block() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def place_of(block: Block) -> str:
    for (page, kind, start), place in RUN_BY.items():
        if (page, kind) == (block.page, block.kind) and block.text.startswith(start):
            return place
    return ""


def test_every_block_is_run_by_a_test_that_exists() -> None:
    unknown = [str(block) for block in every_block() if not (is_shell(block) or block.text.startswith(DRAWINGS) or place_of(block))]
    assert unknown == [], "name the tests that run them in RUN_BY"
    for place in set(RUN_BY.values()):
        check_place(place)
    used = {place_of(block) for block in every_block()}
    assert set(RUN_BY.values()) == used - {""}, "no block is left that these run"


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without assignments and redirections; of `$(...)` too."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", text.replace("\\\n", " "))
    while inner := re.search(r"\$\(([^()]*)\)", text):
        yield from simple_commands(inner[1])
        text = text[: inner.start()] + "SUBSTITUTED" + text[inner.end() :]
    text = re.sub(r"\d?>{1,2}\s?&?\S+", "", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token.strip("();|&\n") or not token:
            words.append(token)
            continue
        while words and (words[0] in ("do", "{", "}", "then") or re.match(r"\w+=", words[0])):
            words.pop(0)
        if words:
            yield words
        words = []


def parse(words: list[str]) -> dict[str, Any]:
    """Returns what click reads of the command. Makes files that it names in the present folder."""
    for word in words:
        if re.search(r"\.(toml|db|jsonl|json|txt)$", word) and "://" not in word:
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).touch()
        elif re.fullmatch(r"[\w-]+/", word):
            Path(word).mkdir(exist_ok=True)
    context = click.Context(main, info_name="equipoise")
    command: click.Command = main
    while isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    with command.make_context(command.name, list(words), parent=context) as read:
        return read.params


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_shell, blocks(page)))])
def test_shell_block_has_commands_that_exist_with_options_that_they_take(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(LOG), "convert", lambda self, value, *_: value)  # no broker, archive or log is opened
    monkeypatch.delenv("EQUIPOISE_BOOTSTRAP", raising=False)
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for block in blocks(page):
        if not (is_shell(block) or place_of(block) == SHELLS):
            continue
        for name, value in re.findall(r"^export (EQUIPOISE_BOOTSTRAP)=(\S+)", block.text, re.MULTILINE):
            monkeypatch.setenv(name, value)  # for this block, and those behind it on the page
        for program, *words in simple_commands(block.text):
            match Path(program).name:
                case "equipoise":
                    try:
                        parse(words)
                    except (click.ClickException, click.exceptions.Exit) as error:
                        if error.exit_code:
                            pytest.fail(f"{block}\nequipoise {shlex.join(words)}: {error!r} {getattr(error, 'message', '')}")
                case "make":
                    assert {word for word in words if "=" not in word} <= targets, block
                case "python" | "python3" | "python3.11" if words[0] == "-m":
                    assert importlib.util.find_spec(words[1]), f"{block}: {words}"
                case "python" | "python3" if words[0] == "-c":
                    compile(words[1], str(block), "exec")
                case "python" | "python3":
                    assert words[0] in READERS or (ROOT / words[0]).exists(), f"{block}: {words[0]}"
                case name:
                    assert name in PROGRAMS, f"{block}: {name}"


ONE_CLONE = pytest.mark.xdist_group("clone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a fresh clone, with a recorded log, as a file and as an archive."""
    folder = clone(tmp_path_factory.mktemp("clone"))
    commands = "equipoise import kafka-streams scale-out --to group.db; equipoise archive group.db --to archive/"
    done = run(f"set -e; {commands}", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.docs
@ONE_CLONE
@pytest.mark.parametrize(("page", "start"), [("docs/assignors.md", "mkdir -p out"), ("docs/json.md", "python -c")])
def test_shell_block_without_kafka_runs(page: str, start: str, folder: Path) -> None:
    (block,) = (block for block in blocks(page) if block.text.startswith(start))
    done = run(f"set -e -o pipefail; {block.text}", folder)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


def test_commands_page_is_made_from_the_commands() -> None:
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == render(), "run `make commands`, and look at what it changed"


def test_shells_complete_commands_by_the_lines_of_the_page(tmp_path: Path) -> None:
    bash, *others = text_of("docs/commands.md", "bash").splitlines()
    done = run(
        f"{bash}\ncomplete -p equipoise; COMP_WORDS=(equipoise sta) COMP_CWORD=1; _equipoise_completion equipoise; echo ${{COMPREPLY[@]}}", tmp_path
    )
    assert done.stdout.splitlines() == ["complete -o nosort -F _equipoise_completion equipoise", "status"], done.stderr
    for line in others:
        asked = re.search(r"_EQUIPOISE_COMPLETE=\w+_source equipoise", line)
        assert asked is not None
        done = run(asked[0], tmp_path)
        assert (done.returncode, "_equipoise_completion" in done.stdout) == (0, True), done.stderr


def text_of(page: str, kind: str, start: str = "") -> str:
    (block,) = (block for block in blocks(page) if block.kind == kind and block.text.startswith(start))
    return block.text


def run_python(text: str, **names: Any) -> dict[str, Any]:
    exec(compile(text, "page", "exec"), names)  # noqa: S102  # a block of our own page
    return names


def test_member_that_adopts_a_group_is_one() -> None:
    assert isinstance(run_python(text_of("docs/adopt.md", "python"))["member"], Member)


def test_members_of_the_restarts_page_take_their_options() -> None:
    page, common = "docs/restarts.md", {"Member": Member, "handle": lambda record, context: None}
    restarts = run_python(text_of(page, "python", "member = Member").replace("...,", 'sources="clicks",'), **common)
    assert isinstance(restarts["member"], Member)
    prepares = run_python(text_of(page, "python", "async def prepare"), **common)
    assert asyncio.iscoroutinefunction(prepares["prepare"])


def test_core_contract_of_the_architecture_page_holds() -> None:
    settings = GroupConfigured(behaviour_version=HighAvailability.version, solver=HighAvailability.solver)
    record = FactRecord("orders", 1, 1, settings)
    names = run_python(text_of("docs/architecture.md", "python", "machine ="), GroupMachine=GroupMachine, record=record)
    assert GroupMachine.restore(names["checkpoint"]).snapshot() == names["machine"].snapshot()


def test_assignor_of_the_architecture_page_is_the_protocol() -> None:
    shown = run_python("from __future__ import annotations\n" + text_of("docs/architecture.md", "python", "class Assignor"), Protocol=object)[
        "Assignor"
    ]
    assert set(shown.__annotations__) == {name for name, value in vars(Assignor).items() if isinstance(value, property)}
    assert list(inspect.signature(shown.assign).parameters) == list(inspect.signature(Assignor.assign).parameters)


def test_plan_has_the_proofs_that_the_page_shows() -> None:
    shown = json.loads("{" + text_of("docs/assignors.md", "json") + "}")
    source = [{"topic": "t", "partition": 0, "racks": ["a"]}]
    problem = {
        "assignor": "high_availability",
        "config": {"rack_aware_strategy": "min_cost"},
        "members": [{"id": "m1", "rack": "a"}, {"id": "m2", "rack": "b"}],
        "tasks": [{"id": "0_0", "stateful": False, "source": source}],
    }
    cost = json.loads(assign_line(json.dumps(problem)))["cost"]
    assert set(shown) <= set(cost)


def test_contract_of_the_page_is_that_of_the_library() -> None:
    tested = run_python(text_of("docs/assignors.md", "python", "import pytest").replace("from stay_put import StayPut\n", ""), StayPut=object)
    (mark,) = tested["test_contract"].pytestmark
    assert mark.args[1] == CONTRACT


def test_application_of_the_faust_page_takes_the_assignor() -> None:
    faust = pytest.importorskip("faust", reason="needs faust-streaming, of the extra kafka")
    app = run_python(text_of("docs/faust.md", "python"), faust=faust)["app"]
    assert app.conf.PartitionAssignor.__module__.startswith("equipoise.faust")


def test_lines_of_the_log_are_those_of_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for name in ("assignors", "equipoise", "replay") for path in (ROOT / name).rglob("*.py"))
    known = [
        "because {cause}",
        "has more than its share; {destination} has less",
        "and its session is over",
        "which is removed at its end",
        "was removed after",
    ]
    shown = "".join(
        block.text for page in ("docs/deploy.md", "docs/restarts.md") for block in blocks(page) if block.text.startswith("group orders: ")
    )
    for words in known:
        assert words.replace("{destination}", "m4").replace("{cause}", "a member joined") in shown
        assert words.partition("{cause}")[0] in code


def test_worker_takes_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(text_of("docs/deploy.md", "toml"), encoding="utf-8")
    secrets = {"EQUIPOISE_SASL_USERNAME": "worker", "EQUIPOISE_SASL_PASSWORD": "secret"}
    settings = read_settings(WorkerSettings, {}, table="worker", file=file, environ=secrets)
    assert (settings.bootstrap, settings.partitions, settings.http_port) == ("broker1:9092,broker2:9092", 4, 8090)


def test_secured_broker_has_the_properties_of_the_page() -> None:
    """The one that tests/live/test_doctor.py starts; where the certificate is, is the reader's."""
    files = ("tests/live/secured.py", "tools/brokers.py")
    started = "".join((ROOT / name).read_text(encoding="utf-8") for name in files).replace("plaintext", "clients")
    names = {line.partition("=")[0] for line in text_of("docs/deploy.md", "properties").splitlines()}
    assert {name for name in names if name not in started} == {"ssl.keystore.location"}


def test_entry_point_of_the_container_is_a_command() -> None:
    words = json.loads(text_of("docs/restarts.md", "dockerfile").removeprefix("ENTRYPOINT "))
    assert words[0] == "equipoise"
    assert parse(words[1:])["words"] == ("python", "orders.py")


def test_scenario_of_the_page_holds() -> None:
    assert run_text(text_of("docs/scenarios.md", "text"), "page").holds


def test_query_of_the_spark_page_names_columns_of_its_table() -> None:
    query = text_of("docs/spark.md", "sql", "-- the longest")
    assert {name for name, _ in TABLES["unavailability"]} >= set(re.findall(r"\b\w+_ms\b", query))
    assert "'history/unavailability/*.parquet'" in query


@pytest.mark.docs
@ONE_CLONE
def test_notebook_of_the_spark_page_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first part; tests/spark has the functions of the second."""
    monkeypatch.chdir(folder)
    text = text_of("docs/spark.md", "python", "from equipoise import replay")
    plain, _, on_spark = text.partition("\nspark.spark_")
    names = run_python(plain)
    assert names["history"].totals().stopped_ms > 0
    assert [each.configuration.name for each in names["costs"].outcomes] == ["two slots"]
    assert set(re.findall(r"spark\.(\w+)", f"spark.spark_{on_spark}")) <= set(spark.__all__)


@pytest.mark.docs
@ONE_CLONE
def test_lines_for_streams_properties_are_what_the_command_prints(folder: Path) -> None:
    page = (ROOT / "docs" / "what-if.md").read_text(encoding="utf-8")
    swept = re.search(r"These are of the recorded group with `(.*?)`\.", page, re.DOTALL)
    assert swept
    done = run(f"equipoise what-if group.db {' '.join(swept[1].split())} --quiet", folder)
    assert done.stdout.endswith(text_of("docs/what-if.md", "", "# Kafka Streams")), done.stdout + done.stderr


def test_properties_of_the_streams_page_are_those_of_its_class() -> None:
    name, url = (line.partition("=")[2] for line in text_of("docs/streams.md", "properties").splitlines())
    source = ROOT / "java" / "streams-assignor" / "src" / "main" / "java" / f"{name.replace('.', '/')}.java"
    assert f"equipoise.url={url}" in source.read_text(encoding="utf-8")
    assert url.endswith(f":{WorkerSettings(bootstrap='broker:9092').http_port}")


def test_properties_of_the_seat_page_are_those_of_the_assignor_inside_brokers() -> None:
    """tests/live/test_broker_seat.py and test_streams_seat.py start brokers with them."""
    for setting, before, named in ((SETTING, "uniform,range", CLASS), (STREAMS_SETTING, "sticky", STREAMS_CLASS)):
        written = text_of("docs/seat.md", "properties", setting).strip()
        assert written == f"{setting}={before},{named}"
        source = ROOT / "java" / "broker-assignor" / "src" / "main" / "java" / f"{named.replace('.', '/')}.java"
        assert written in source.read_text(encoding="utf-8")
    assert f"config:\n      {SETTING}: uniform,range,{CLASS}\n" in text_of("docs/seat.md", "yaml")


def test_question_and_answer_of_the_streams_page_are_sound() -> None:
    question = read_question(text_of("docs/streams.md", "json", '{"version": 1, "round": "any unique text",\n "settings"').encode())
    answer = json.loads(text_of("docs/streams.md", "json", '{"version": 1, "round": "any unique text", "generation"'))
    assert question.round_id == answer["round"]
    assert set(answer["processes"]) == {each.id for each in question.processes}
    planned = RoundPlanned(round_id=question.round_id, generation=7, members=(), probing=False)
    assert set(answer) == set(answer_of(planned, {}))
