"""`equipoise adopt` and `release` without a broker: what they refuse."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from equipoise.cli import main


@pytest.mark.parametrize(("words", "says"), [(("adopt", "--from"), "--group"), (("release", "--to"), "--group")])
def test_one_name_for_both_groups_is_refused(words: tuple[str, str], says: str) -> None:
    done = CliRunner().invoke(main, [words[0], "--group", "g", words[1], "g"])
    assert done.exit_code == 2
    assert f"{says}: the members' group and the consumers' are both 'g'" in done.stderr


@pytest.mark.parametrize("words", [("adopt", "--from"), ("release", "--to")])
def test_no_broker_is_said_in_one_line(words: tuple[str, str]) -> None:
    done = CliRunner().invoke(main, [words[0], "--bootstrap", "127.0.0.1:1", "--group", "g", words[1], "c"])
    assert done.exit_code == 2
    assert "no broker answers at 127.0.0.1:1" in done.stderr
