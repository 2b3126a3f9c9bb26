"""A redacted report does not depend on names: with other names it is the same to the byte, also where
names are words that reports and logs have, and in lines that are not understood.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.cli.redaction import Redactor, known_words

NAMES = ("group", "topic", "member", "other", "client", "host")
PLAIN = ("acme-billing", "payments", "smith-1-aaaa", "smith-2-bbbb", "smith", "db7.corp.acme.example")
WORDS = ("consumer", "offsets", "leader-1-member", "assignor-2-client", "heartbeat", "rebalance.partition.group.example")
COORDINATOR = (
    "Preparing to rebalance group {group} with old generation 4 (reason: removing member {member} on heartbeat expiration)",
    "Member {member} in group {group} has failed, removing it from the group",
    "Stabilized group {group} generation 5 (__consumer_offsets-3) with 1 members",
    "Group {group} has partitions of {topic}-7 at /{host}:9092 in 3 ways",
    "Dynamic member {other} frobnicates group {group}, clientId={client}, clientHost=/10.1.2.3",
    "Frobnicated [GroupId {group}] on node {host}:9092 for topic '{topic}' since instance={client} is a rebalance",
)
CONSUMER = (
    "[Consumer clientId={client}, groupId={group}] (Re-)joining group",
    "[Consumer clientId={client}, groupId={group}] Successfully joined group with generation 5",
    "[Consumer clientId={client}, groupId={group}] Adding newly assigned partitions: {topic}-0, {topic}-1",
    "[Consumer clientId={client}, groupId={group}] Frobnicating partition {topic}-0 for member {other} of group {group}",
    '{{"level":"warn","msg":"rebalance","group":"{group}","topic":"{topic}","host":"{host}"}}',
)
TABLE = (
    "GROUP  TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID",
    "{group}  {topic}  0  10  500  490  {member}  /10.1.2.3  {client}",
    "{group}  {topic}  1  10  10  0  {member}  /10.1.2.3  {client}",
)


def written(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Files of a broker, a client and a tool with these names, and in a folder that has one."""
    given = dict(zip(NAMES, names, strict=True))
    place = folder / given["group"]
    place.mkdir()
    for file, lines, form in (
        (f"{given['host']}.log", COORDINATOR, "[2026-03-01 10:0{}:00,000] INFO [GroupCoordinator 1]: {} (kafka.coordinator.group.GroupCoordinator)"),
        (f"{given['client']}.txt", CONSUMER, "2026-03-01 10:0{}:01,000 INFO  o.a.k.c.c.i.ConsumerCoordinator - {}"),
        ("described", TABLE, "{1}"),
    ):
        (place / file).write_text("\n".join(form.format(number, line.format(**given)) for number, line in enumerate(lines)) + "\n")
    return [str(place / file) for file in (f"{given['host']}.log", f"{given['client']}.txt", "described")]


@pytest.mark.parametrize("options", [[], ["--json"], ["--markdown"]], ids=["text", "json", "markdown"])
def test_redacted_report_is_the_same_with_other_names(options: list[str], tmp_path: Path) -> None:
    shown = {}
    for names in (PLAIN, WORDS):
        (tmp_path / names[0]).mkdir()
        done = CliRunner().invoke(main, ["incident", *written(tmp_path / names[0], names), "--redact", *options])
        assert done.exit_code == 0, done.output
        shown[names] = done.stdout
    assert shown[WORDS] == shown[PLAIN]
    plain = shown[PLAIN].replace("\\", "")
    for text in ("acme", "billing", "payments", "smith", "aaaa", "db7", "corp", "10.1.2.3", str(tmp_path)):
        assert text not in plain, text
    for text in ("group-1", "topic-1", "member-1", "file-1", "session timeout", "not_understood" if "--json" in options else "not understood"):
        assert text in plain, text


def test_redacted_page_is_the_same_with_other_names(tmp_path: Path) -> None:
    shown = []
    for names in (PLAIN, WORDS):
        (tmp_path / names[0]).mkdir()
        page = tmp_path / f"{names[0]}.html"
        done = CliRunner().invoke(main, ["incident", *written(tmp_path / names[0], names), "--redact", "--group", names[0], "--html", str(page)])
        assert done.exit_code == 0, done.output
        text = page.read_text(encoding="utf-8")
        shown.append(re.sub("#[0-9a-f]{6}", "", text))  # a member's colour comes from its name, and ten have one
        assert "<script" in text
    drawn = [text.partition('type="application/json"')[2].partition("</script>")[0].partition(">")[2] for text in shown]
    assert set(json.loads(drawn[0])) >= {"title", "stories"}
    assert shown[0] == shown[1]
    assert "acme" not in shown[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("The group is rebalancing, so a rejoin is needed", "The group is rebalancing, so a rejoin is needed"),
        ("Group consumer frobnicates", "Group name-1 name-2"),
        ("member=leader host: heartbeat", "member=name-1 host: name-2"),
        ("lost connection to jane.doe@acme.example", "lost name-1 to name-2"),
        ("größe müller in /srv/data/acme", "name-1 name-2 in /name-3"),
        ("generation N after N ms, offset N.N", "generation N after N ms, offset N.N"),
        ("NullPointerException and com.acme.SecretException", "NullPointerException and name-1"),
    ],
)
def test_line_that_was_not_understood_keeps_words_of_known_forms_alone(line: str, said: str) -> None:
    assert Redactor([], {}).form(line) == said


def test_words_that_stay_are_those_of_forms_and_none_of_their_samples() -> None:
    assert known_words() >= {"rebalance", "generation", "heartbeat", "coordinator", "unavailable", "partition"}
    assert not known_words() & {"orders", "payments", "acme", "prod", "eu", "aws", "app"}
