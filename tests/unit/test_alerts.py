"""Every alert of deploy/prometheus/rules.yml in time: quiet in a quiet night, fires when its reason
has come, and fires at every minute of the day after, also while another worker takes over; then it
ends. `CAUSES` has a row for each alert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.prometheus import RULES, promtool, rules, yaml

QUIET_MIN, TAKEOVER_MIN, AWAY_MIN, LASTS_MIN, AFTER_MIN = 90, 300, 2, 1_530, 180
"""Minutes: quiet at first; from the cause to the takeover, in which no worker shows anything for
AWAY_MIN; from the cause to its end, a day and an hour at least; and quiet again."""
DAY_MIN = 24 * 60


@attrs.frozen
class Cause:
    """`series`: what Prometheus scrapes -> (what it is in a quiet night, what it is while the
    reason lasts). ``+5``: a counter that rises by so much in a minute; ``_``: it is not there.
    `within_min`: from the first sample of the cause to the first minute in which the alert fires.
    `labels`: of the alert that fires.
    """

    series: Mapping[str, tuple[str, str]]
    within_min: int
    labels: Mapping[str, str] = attrs.field(factory=dict)


G, M, P = {"group": "g"}, {"group": "g", "member": "m1"}, {"partition": "0"}
W1 = {"job": "equipoise-worker", "instance": "w1"}
CAUSES: dict[str, Cause] = {
    "EquipoiseGroupHalted": Cause({'equipoise_group_halted{group="g"}': ("0", "1")}, 0, G),
    "EquipoiseTasksWithoutOwner": Cause({'equipoise_tasks{group="g",state="nobody"}': ("0", "3")}, 2, G),
    "EquipoiseUnreadPartitions": Cause({'equipoise_unread_partitions{group="g",topic="t"}': ("0", "2")}, 5, {**G, "topic": "t"}),
    "EquipoiseMembersRefused": Cause({'equipoise_members_refused{group="g"}': ("0", "1")}, 1, G),
    "EquipoiseGroupsNotNamed": Cause({'equipoise_groups{condition="trouble",named="false"}': ("0", "2")}, 5, {"condition": "trouble"}),
    "EquipoiseTasksUnavailable": Cause(  # one task of six stands still: ten minutes, and those that one kill may cost
        {'equipoise_unavailable_task_seconds_total{group="g"}': ("+0", "+60"), 'equipoise_tasks{group="g",state="owned"}': ("6", "6")}, 13, G
    ),
    "EquipoiseNoWorker": Cause(
        {'up{job="equipoise-worker",instance="w1"}': ("1", "1"), 'equipoise_ready{job="equipoise-worker",instance="w1"}': ("1", "0")}, 2
    ),
    "EquipoiseWorkerDown": Cause({'up{job="equipoise-worker",instance="w1"}': ("1", "0")}, 1, W1),
    "EquipoiseNotReady": Cause({'equipoise_ready{job="equipoise-worker",instance="w1"}': ("1", "0")}, 10, W1),
    "EquipoisePartitionNotLed": Cause({'equipoise_partition_leading{partition="0"}': ("1", "0")}, 1, P),
    "EquipoiseMemberDown": Cause({'up{job="equipoise-member",instance="m1"}': ("1", "0")}, 2, {"job": "equipoise-member", "instance": "m1"}),
    "EquipoiseMemberExpired": Cause({'equipoise_decisions_total{kind="MemberExpired"}': ("+0", "+1")}, 3),
    "EquipoiseTaskParked": Cause({'equipoise_member_parked_tasks{group="g",member="m1"}': ("0", "1")}, 0, M),
    "EquipoiseMembersHeldUp": Cause({'equipoise_members_held_up{group="g"}': ("0", "1")}, 5, G),
    "EquipoiseLeaseOver": Cause({'equipoise_member_lease_left_seconds{group="g",member="m1"}': ("9", "0")}, 1, M),
    "EquipoiseMemberStuck": Cause(
        {
            'equipoise_member_source_lag_records{group="g",member="m1",task="0_0"}': ("5", "50"),
            'equipoise_member_records_total{group="g",member="m1"}': ("+100", "+0"),
        },
        20,
        M,
    ),
    "EquipoiseTaskOpensSlowly": Cause({'equipoise_member_tasks{group="g",member="m1",role="opening"}': ("0", "1")}, 15, M),
    "EquipoiseRestoreStandsStill": Cause(
        {
            'equipoise_member_restore_lag_records{group="g",member="m1",task="0_0"}': ("5", "500"),
            'equipoise_member_restored_records_total{group="g",member="m1"}': ("+100", "+0"),
        },
        20,
        M,
    ),
    "EquipoiseCommitsFenced": Cause({'equipoise_member_fenced_commits_total{group="g",member="m1"}': ("+0", "+60")}, 32, M),
    "EquipoiseSourceLagGrows": Cause({'equipoise_source_lag_records{group="g"}': ("0", "+200")}, 81, G),
    "EquipoiseWarmupStandsStill": Cause({'equipoise_warmup_lag_records{group="g"}': ("0", "8000")}, 15, G),
    "EquipoiseMovementsWait": Cause({'equipoise_movements{group="g",state="waiting"}': ("0", "3")}, 60, G),
    "EquipoiseHandOverHangs": Cause({'equipoise_movements{group="g",state="revoking"}': ("0", "1")}, 10, G),
    "EquipoiseLostTasksFree": Cause({'equipoise_lost_tasks{group="g",state="free"}': ("0", "1")}, 5, G),
    "EquipoiseLostTasksWaitLong": Cause({'equipoise_lost_tasks_wait_seconds{group="g"}': ("300", "900")}, 0, G),
    "EquipoiseRoundsThrash": Cause({'equipoise_generation{group="g"}': ("+1", "+6")}, 25, G),
    "EquipoiseImbalanced": Cause({'equipoise_imbalance_tasks{group="g"}': ("0", "5")}, 60, G),
    "EquipoiseFactsRejected": Cause({"equipoise_rejected_facts_total": ("+1", "+5")}, 3),
    "EquipoiseRecordsRejected": Cause({"equipoise_rejected_records_total": ("+0", "+1")}, 1),
    "EquipoiseTakeoversFail": Cause({"equipoise_takeovers_failed_total": ("+0", "+1")}, 3),
    "EquipoiseTakeoverSlow": Cause({"equipoise_takeover_seconds_sum": ("+2", "+40"), "equipoise_takeover_seconds_count": ("+1", "+1")}, 45),
    "EquipoiseFoldSlow": Cause(
        {
            'equipoise_fold_seconds_bucket{le="1.0"}': ("+1000", "+900"),
            'equipoise_fold_seconds_bucket{le="3.0"}': ("+1000", "+1000"),
            'equipoise_fold_seconds_bucket{le="+Inf"}': ("+1000", "+1000"),
        },
        11,
    ),
    "EquipoiseRetentionHeld": Cause({'equipoise_retention_held{partition="0"}': ("0", "1")}, 60, P),
    "EquipoiseRoundsRefused": Cause({'equipoise_rounds_asked_total{status="403"}': ("+0", "+1")}, 1, {"status": "403"}),
    "EquipoiseRoundsSlow": Cause(
        {
            'equipoise_round_seconds_bucket{le="1.0"}': ("+10", "+0"),
            'equipoise_round_seconds_bucket{le="3.0"}': ("+10", "+10"),
            'equipoise_round_seconds_bucket{le="+Inf"}': ("+10", "+10"),
        },
        3,
    ),
    "EquipoiseSettingChanged": Cause({'equipoise_setting_changes_total{setting="max_warmups"}': ("+0", "+1")}, 1, {"setting": "max_warmups"}),
    "EquipoiseChangeCostsTooMuch": Cause({'equipoise_changes_judged_total{verdict="above"}': ("+0", "+1")}, 1, {"verdict": "above"}),
    "EquipoiseVerificationFailed": Cause({"equipoise_stream_alerts": ("0", "1")}, 0),
    "EquipoiseVerificationDown": Cause({'up{job="equipoise-stream",instance="s1"}': ("1", "0")}, 5, {"job": "equipoise-stream", "instance": "s1"}),
    "EquipoiseLeadDown": Cause({'up{job="equipoise-lead",instance="l1"}': ("1", "0")}, 1, {"job": "equipoise-lead", "instance": "l1"}),
    "EquipoiseGroupNotLed": Cause({'equipoise_lead_seat{group="g",state="leads"}': ("1", "0")}, 10, G),
    "EquipoiseGroupCannotBeLed": Cause({'equipoise_lead_seat{group="g",state="refused"}': ("0", "1")}, 5, G),
    "EquipoiseLedGroupUnread": Cause(
        {'equipoise_lead_members{group="g"}': ("3", "0"), 'equipoise_lead_lag_records{group="g"}': ("50", "2869")}, 2, G
    ),
    "EquipoiseLedMovesHang": Cause({'equipoise_lead_pending_moves{group="g"}': ("0", "2")}, 15, G),
    "EquipoiseLedRebalanceWaits": Cause({'equipoise_lead_rebalance_wait_seconds{group="g"}': ("0", "90")}, 0, G),
    "EquipoiseLeadUnanswered": Cause(
        {'equipoise_lead_answer_age_seconds{group="g"}': ("0", "300"), 'equipoise_lead_rebalance_wait_seconds{group="g"}': ("0", "0")}, 1, G
    ),
    "EquipoiseSeatSilent": Cause({'equipoise_lead_silent_seats_total{group="g"}': ("+0", "+1")}, 1, G),
    "EquipoiseLedLagGrows": Cause({'equipoise_lead_lag_records{group="g"}': ("0", "+200")}, 81, G),
}
OTHERWISE: dict[str, tuple[str, Cause]] = {
    "no worker is up": ("EquipoiseNoWorker", Cause({'up{job="equipoise-worker",instance="w1"}': ("1", "0")}, 2)),
    "no worker was there": ("EquipoiseNoWorker", Cause({'up{job="equipoise-worker",instance="w1"}': ("1", "_")}, 2)),
    "a parked task of a member that is not scraped": (
        "EquipoiseTaskParked",
        Cause(
            {'equipoise_parked_tasks{group="g",task="0_3",topic="orders",partition="3",offset="17"}': ("0", "1")},
            0,
            {**G, "task": "0_3", "topic": "orders", "partition": "3", "offset": "17"},
        ),
    ),
    "a worker that was never ready": ("EquipoiseNotReady", Cause({'equipoise_ready{job="equipoise-worker",instance="w1"}': ("_", "0")}, 10, W1)),
    "a group that no seat ever led": ("EquipoiseGroupNotLed", Cause({'equipoise_lead_seat{group="g",state="leads"}': ("_", "0")}, 10, G)),
    "a partition that nobody ever led": ("EquipoisePartitionNotLed", Cause({'equipoise_partition_leading{partition="0"}': ("_", "0")}, 1, P)),
}
"""Further causes of the same alerts."""
ROWS = {**{name: (name, cause) for name, cause in CAUSES.items()}, **OTHERWISE}
ALERTS = {rule["alert"]: rule for rule in rules()}
_OF_A_WORKER = re.compile(r"equipoise_(?!member_|stream_|ready)")
_NEIGHBOUR = {'group="g"': 'group="quiet"', 'member="m1"': 'member="m2"', 'instance="w1"': 'instance="w2"', 'partition="0"': 'partition="1"'}


def values(form: str, count: int, begins: int = 0) -> tuple[str, int]:
    """So many samples, one a minute, in promtool's notation; and where a counter ends."""
    if form == "_":
        return f"stale _x{count - 1}", begins
    if form.startswith("+"):
        return f"{begins}{form}x{count - 1}", begins + int(form) * count
    return f"{form}x{count - 1}", int(form)


def promtool_test(alert: str, cause: Cause) -> dict[str, Any]:
    """The promtool test of one row."""
    found: list[dict[str, str]] = []
    for series, (quiet, during) in cause.series.items():
        first, at = values(quiet, QUIET_MIN)
        if _OF_A_WORKER.match(series):
            name, _, rest = series.partition("{")
            second, at = values(during, TAKEOVER_MIN, at)
            third, at = values(during, LASTS_MIN - TAKEOVER_MIN - AWAY_MIN, 0 if name.endswith(("_total", "_bucket", "_sum", "_count")) else at)
            away = f"_x{QUIET_MIN + TAKEOVER_MIN + AWAY_MIN}"
            of = f"{name}{{instance=%s,{rest or '}'}"
            found.append({"series": of % '"w1"', "values": f"{first} {second} stale"})
            found.append({"series": of % '"w2"', "values": f"{away} {third} {values(quiet, AFTER_MIN, at)[0]}"})
        else:
            second, at = values(during, LASTS_MIN, at)
            found.append({"series": series, "values": f"{first} {second} {values(quiet, AFTER_MIN, at)[0]}"})
        neighbour = series
        for own, other in _NEIGHBOUR.items():
            neighbour = neighbour.replace(own, other)
        if neighbour != series and alert != "EquipoiseNoWorker":
            found.append({"series": neighbour, "values": values(quiet, QUIET_MIN + LASTS_MIN + AFTER_MIN)[0]})
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    labels = {"alertname": alert, "alertstate": "firing", "severity": ALERTS[alert]["labels"]["severity"], **cause.labels}
    text = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    sample: dict[str, Any] = {"labels": f"ALERTS{{{text}}}", "value": 1}
    moment = QUIET_MIN + cause.within_min
    expected: list[tuple[str, int, list[dict[str, Any]]]] = [
        (f"count_over_time({firing}[{moment}m])", moment - 1, []),
        (firing, moment, [sample]),
        (firing, moment + 60, [sample]),
        (firing, moment + DAY_MIN, [sample]),
        (f"sum(count_over_time({firing}[{DAY_MIN}m]))", moment + DAY_MIN, [{"labels": "{}", "value": DAY_MIN + 1}]),
        (firing, QUIET_MIN + LASTS_MIN + AFTER_MIN - 1, []),
    ]
    return {
        "rule_files": [f"{alert}.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": found,
                "promql_expr_test": [{"expr": expr, "eval_time": f"{at}m", "exp_samples": exp} for expr, at, exp in expected],
            }
        ],
    }


def written(folder: Path, alert: str, cause: Cause) -> str:
    """Writes the alert alone, and its test; returns the path of the test."""
    (folder / f"{alert}.yml").write_text(yaml.safe_dump({"groups": [{"name": alert, "rules": [ALERTS[alert]]}]}), encoding="utf-8")
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(promtool_test(alert, cause)), encoding="utf-8")
    return str(path)


def test_every_alert_has_a_cause() -> None:
    assert CAUSES.keys() == ALERTS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_alert_fires_in_time_and_as_long_as_its_reason_lasts(name: str, tmp_path: Path) -> None:
    promtool("test", "rules", written(tmp_path, *ROWS[name]))


def test_quiet_night_fires_no_alert(tmp_path: Path) -> None:
    count = DAY_MIN + 60
    series = {series: values(quiet, count)[0] for _, cause in ROWS.values() for series, (quiet, _) in cause.series.items() if quiet != "_"}
    night = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": each} for name, each in series.items()],
                "promql_expr_test": [
                    {"expr": f'count_over_time(ALERTS{{alertstate="firing"}}[{count}m])', "eval_time": f"{count - 1}m", "exp_samples": []}
                ],
            }
        ],
    }
    (tmp_path / "night.yml").write_text(yaml.safe_dump(night), encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "night.yml"))


@pytest.mark.parametrize("forgets", ["max_over_time(equipoise_group_halted[1h]) == 0", "max by (group) (increase(equipoise_group_halted[15m])) > 0"])
def test_alert_that_forgets_is_found(forgets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALERTS["EquipoiseGroupHalted"], "expr", forgets)
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", written(tmp_path, "EquipoiseGroupHalted", CAUSES["EquipoiseGroupHalted"]))
