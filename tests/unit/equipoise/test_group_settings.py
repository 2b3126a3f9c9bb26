"""What `equipoise configure` computes before it appends a fact: changes, previews, and the command
that restores the former settings.
"""

from __future__ import annotations

import shlex

import attrs
import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.hosting.changed_settings import with_settings
from equipoise.operations.group_settings import changes_between, check_configuration, preview, way_back, with_assignor, with_defaults
from tests.groups import Group, configured

BEFORE = configured("lag_aware", max_warmups=3, rack_aware_tags=("zone", "host"))


def applied(config: GroupConfigured, command: str) -> GroupConfigured:
    """`config` after the `equipoise configure` command `command`."""
    words = shlex.split(command)
    options: dict[str, list[str]] = {"--set": [], "--default": [], "--assignor": [], "--led-by": [], "--group": []}
    for option, value in zip(words[2::2], words[3::2], strict=True):
        options[option].append(value)
    for assignor in options["--assignor"]:
        config = with_assignor(config, assignor)
    settings = with_settings(with_defaults(config.knobs, options["--default"]), options["--set"])
    return attrs.evolve(config, knobs=settings, led_by=(*options["--led-by"], config.led_by)[0])


@pytest.mark.parametrize(
    "after",
    [
        attrs.evolve(BEFORE, knobs=attrs.evolve(BEFORE.knobs, max_warmups=9, rack_aware_tags=(), rack_aware_strategy="min_cost")),
        attrs.evolve(BEFORE, knobs=attrs.evolve(BEFORE.knobs, options={"cross_topic": True, "rack_lag_tolerance": 5})),
        configured("cooperative", num_standbys=2),
        attrs.evolve(BEFORE, led_by="external"),
    ],
    ids=["knobs", "options", "assignor", "led_by"],
)
def test_way_back_restores_the_settings_before(after: GroupConfigured) -> None:
    for one, other in ((BEFORE, after), (after, BEFORE)):
        assert changes_between(one, other)
        assert applied(other, way_back("a group", one, other)) == one


def test_with_assignor_drops_the_options_of_the_former_assignor() -> None:
    before = attrs.evolve(BEFORE, knobs=attrs.evolve(BEFORE.knobs, options={"cross_topic": True}))
    assert with_assignor(before, "learner").knobs.options == {}
    assert with_assignor(before, "lag_aware@1").knobs.options == {"cross_topic": True}


@pytest.mark.parametrize(
    ("text", "said"), [("learnr", "did you mean 'learner'"), ("learner@9", "version 9 is not installed"), ("learner@x", "NAME@VERSION")]
)
def test_wrong_assignor_is_named_with_the_fix(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_assignor(BEFORE, text)


def test_unknown_default_is_named() -> None:
    with pytest.raises(InputError, match="--default max_warmup"):
        with_defaults(BEFORE.knobs, ["max_warmup"])


def test_check_configuration_refuses_settings_that_the_assignor_refuses() -> None:
    config = attrs.evolve(BEFORE, knobs=attrs.evolve(BEFORE.knobs, options={"no_such_option": 1}))
    with pytest.raises(InputError, match="no_such_option"):
        check_configuration(config)


def test_preview_is_what_the_group_then_decides() -> None:
    group = Group().starts("m1", "m2", stateful=6, num_standbys=0)
    group.settles()
    assert group.state.config is not None
    after = attrs.evolve(group.state.config, knobs=attrs.evolve(group.state.config.knobs, num_standbys=1))
    snapshot = group.machine.snapshot()
    found = preview(group.machine, after)
    assert group.machine.snapshot() == snapshot
    assert found.rejection is None
    decided = group.fact(after, after_ms=0)
    assert found.moves == tuple(move for each in decided for move in getattr(each, "moves", ()))


def test_preview_says_why_a_configuration_would_be_rejected() -> None:
    group = Group().starts("m1", stateful=2)
    assert group.state.config is not None
    after = attrs.evolve(group.state.config, knobs=attrs.evolve(group.state.config.knobs, max_step_ms=50_000))
    rejection = preview(group.machine, after).rejection
    assert rejection is not None
    assert "max_step_ms 50000 is over 3000" in rejection


def test_dry_run_without_a_change_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["configure", "--group", "orders", "--dry-run"])
    assert result.exit_code == 2
    assert "say what to change" in result.output
