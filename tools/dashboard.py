"""The Grafana dashboard `deploy/grafana/equipoise.json`, from the table below. `make dashboard`
writes it, and a test keeps the two equal. Edit the table, not the JSON.

The JSON has the form that Grafana 10 and later exports (schema version 39).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from equipoise.replay.numbers import WITHOUT_RUNNER

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PANELS_A_ROW, WIDTH, HEIGHT = 3, 8, 8
"""Grafana's grid is 24 columns wide; a unit of height is 30 pixels."""
G = '{group=~"$group"}'
_RED, _GREEN = "red", "green"


@attrs.frozen(kw_only=True)
class Panel:
    """A panel. `queries`: PromQL -> text of the legend. `unit`: of Grafana, or ``suffix: ...``.
    `kind`: ``timeseries``, ``stat`` or ``table``. `bad_from`: a `stat` is red from this value on;
    `bad_below`: below this value.
    """

    title: str
    unit: str
    description: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    stacked: bool = False
    bad_from: float | None = None
    bad_below: float | None = None

    def document(self, number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
        defaults: dict[str, Any] = {"unit": self.unit, "min": 0}
        options: dict[str, Any] = {}
        if self.kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line", "lineWidth": 1, "fillOpacity": 20 if self.stacked else 0, "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none"},
            }  # fmt: skip # a table: one row a line
            options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
        elif self.kind == "stat":
            low, high, limit = (_GREEN, _RED, self.bad_from) if self.bad_below is None else (_RED, _GREEN, self.bad_below)
            steps = [{"color": low, "value": None}, *([] if limit is None else [{"color": high, "value": limit}])]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area"}
        targets = [
            {
                "refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": query, "legendFormat": legend,
                **({"format": "table", "instant": True} if self.kind == "table" else {}),
            }
            for index, (query, legend) in enumerate(self.queries.items())
        ]  # fmt: skip # a table: one row a line
        hidden = {"Time": True, "__name__": True, "instance": True, "job": True}
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
            "targets": targets,
            **({"transformations": [{"id": "organize", "options": {"excludeByName": hidden}}]} if self.kind == "table" else {}),
        }


def _rate(metric: str, labels: str = "", by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{labels}[$__rate_interval]))"


def _quantile(part: float, metric: str) -> str:
    return f"histogram_quantile({part}, sum by (le) (rate({metric}_bucket[$__rate_interval])))"


NOW = (
    Panel(
        kind="stat", title="Halted groups", unit="none", bad_from=1,
        description="Groups in which nothing is decided. Members run on. docs/operations.md#a-halted-group",
        queries={f"sum(equipoise_group_halted{G})": "halted"},
    ),
    Panel(
        kind="stat", title="Tasks without an owner", unit="none", bad_from=1,
        description="Nobody processes their records.",
        queries={'sum(equipoise_tasks{group=~"$group",state="nobody"})': "without an owner"},
    ),
    Panel(
        kind="stat", title="Failed tasks", unit="none", bad_from=1,
        description="Their handler failed, and they handle nothing more until the handler is mended and the member restarts.",
        queries={f"sum(equipoise_parked_tasks{G})": "failed"},
    ),
    Panel(
        kind="stat", title="Members", unit="none", bad_below=1,
        description="Live members of the chosen groups.",
        queries={f"sum(equipoise_members{G})": "members"},
    ),
    Panel(
        kind="stat", title="Partitions led", unit="none", bad_below=1,
        description="Partitions of the log that a worker has taken over and leads.",
        queries={"sum(max by (partition) (equipoise_partition_leading))": "led"},
    ),
    Panel(
        kind="stat", title="Processes down", unit="none", bad_from=1,
        description="Processes that Prometheus cannot reach, and those that say that they are not ready.",
        queries={'count(up{job=~"equipoise-.*"} == 0) or vector(0)': "down", "count(equipoise_ready == 0) or vector(0)": "not ready"},
    ),
)  # fmt: skip # a table: one row a line

ROWS: dict[str, tuple[Panel, ...]] = {
    "All groups": (
        Panel(
            title="Groups", unit="suffix: groups", stacked=True,
            description="Groups by condition, the chosen ones or not. trouble: tasks without an owner, and other things that need somebody.",
            queries={"sum by (condition) (equipoise_groups)": "{{condition}}"},
        ),
        Panel(
            title="Groups without names", unit="suffix: groups", stacked=True,
            description="Groups of which the other rows show nothing, because workers have too many. docs/metrics.md#many-groups",
            queries={'sum by (condition) (equipoise_groups{named="false"})': "{{condition}}"},
        ),
        Panel(
            title="Members of all groups", unit="suffix: members", stacked=True,
            description="Live members by state.",
            queries={"sum by (state) (equipoise_all_members)": "{{state}}"},
        ),
        Panel(
            title="Tasks of all groups", unit="suffix: tasks",
            description="Tasks by state, those that lost their owner, and the mean number without a running owner.",
            queries={
                "sum by (state) (equipoise_all_tasks)": "{{state}}",
                "sum by (state) (equipoise_all_lost_tasks)": "lost, {{state}}",
                _rate("equipoise_all_unavailable_task_seconds_total"): WITHOUT_RUNNER,
            },
        ),
        Panel(
            title="Movements of all groups", unit="suffix: tasks", stacked=True,
            description="Changes of owner in progress: waiting for a warm-up slot, warming, revoking.",
            queries={"sum by (state) (equipoise_all_movements)": "{{state}}"},
        ),
        Panel(
            title="Records left in all groups", unit="short",
            description="Records that warm-ups have still to restore, and source records still to be processed.",
            queries={"sum(equipoise_all_warmup_lag_records)": "warm-ups", "sum(equipoise_all_source_lag_records)": "sources"},
        ),
        Panel(
            title="Misfits of all groups", unit="none",
            description="Tasks out of balance or failed, source partitions that no task reads, members that may not join or are held up.",
            queries={
                "sum(equipoise_all_parked_tasks)": "failed tasks",
                "sum(equipoise_all_imbalance_tasks)": "imbalance",
                "sum(equipoise_all_unread_partitions)": "unread partitions",
                "sum(equipoise_all_members_refused)": "refused members",
                "sum(equipoise_all_members_held_up)": "members held up",
            },
        ),
    ),
    "Groups": (
        Panel(
            title="Tasks", unit="suffix: tasks", stacked=True,
            description="Tasks by state. revoking: the owner gives the task up. nobody: the task has no owner, and stands still.",
            queries={f"sum by (state) (equipoise_tasks{G})": "{{state}}"},
        ),
        Panel(
            title=f"Tasks {WITHOUT_RUNNER}", unit="suffix: tasks",
            description=f"Mean number of tasks {WITHOUT_RUNNER}: task-seconds per second, as timelines show. A silence counts when it is over.",
            queries={_rate("equipoise_unavailable_task_seconds_total", G, "group"): "{{group}}"},
        ),
        Panel(
            title="Members", unit="suffix: members", stacked=True,
            description="Live members by state. UNREVOKED: has to give a task up. UNRELEASED: waits for another member to give one up.",
            queries={f"sum by (state) (equipoise_members{G})": "{{state}}"},
        ),
        Panel(
            title="Movements", unit="suffix: tasks", stacked=True,
            description="Changes of owner in progress: waiting for a warm-up slot, warming, revoking.",
            queries={f"sum by (state) (equipoise_movements{G})": "{{state}}"},
        ),
        Panel(
            title="Warm-ups: records left", unit="short",
            description="Records that warm-ups still have to restore. It falls while they progress.",
            queries={f"sum by (group) (equipoise_warmup_lag_records{G})": "{{group}}"},
        ),
        Panel(
            title="Imbalance", unit="suffix: tasks",
            description="Tasks above the members' upper share plus tasks below the lower share. 0: balanced.",
            queries={f"max by (group) (equipoise_imbalance_tasks{G})": "{{group}}"},
        ),
        Panel(
            title="Rounds per hour", unit="suffix: rounds/h",
            description="Decision rounds. A steady rate without joins, leaves or deployments is thrash.",
            queries={f"max by (group) (rate(equipoise_generation{G}[$__rate_interval])) * 3600": "{{group}}"},
        ),
        Panel(
            title="Changes of owner to the target", unit="suffix: moves",
            description="Planned by the last round, and the fewest for any balanced target. Absent after a takeover until the next round.",
            queries={f"max by (group, count) (equipoise_target_moves{G})": "{{group}} {{count}}"},
        ),
        Panel(
            title="Lost tasks", unit="suffix: tasks", stacked=True,
            description="Tasks without an owner since theirs left or died. waiting: on purpose, until their member is back. free: not.",
            queries={f"sum by (state) (equipoise_lost_tasks{G})": "{{state}}"},
        ),
        Panel(
            title="Lost tasks: longest wait", unit="s",
            description="Time until the last of the waiting lost tasks gets a new owner.",
            queries={f"max by (group) (equipoise_lost_tasks_wait_seconds{G})": "{{group}}"},
        ),
        Panel(
            title="Source lag", unit="short",
            description="Source records still to be processed, as members report them.",
            queries={f"sum by (group) (equipoise_source_lag_records{G})": "{{group}}"},
        ),
        Panel(
            title="Halted", unit="none",
            description="1: the group is halted. docs/operations.md#a-halted-group",
            queries={f"max by (group) (equipoise_group_halted{G})": "{{group}}"},
        ),
        Panel(
            title="Unread partitions, refused members, members held up", unit="none",
            description="Source partitions that no task reads, and members that run another topology. docs/operations.md#alerts",
            queries={
                f"sum by (group) (equipoise_unread_partitions{G})": "{{group}} unread",
                f"sum by (group) (equipoise_members_refused{G})": "{{group}} refused",
                f"sum by (group) (equipoise_members_held_up{G})": "{{group}} held up",
            },
        ),
        Panel(
            title="Partitions read across racks", unit="suffix: partitions",
            description="Source partitions that the target reads from another rack. docs/restarts.md#racks",
            queries={f"max by (group) (equipoise_cross_rack_partitions{G})": "{{group}}"},
        ),
        Panel(
            title="Load spread", unit="percentunit",
            description="Load per thread of the fullest staying member less that of the emptiest, in fair shares. Only for load_balanced.",
            queries={f"max by (group, at) (equipoise_load_spread_ratio{G})": "{{group}} {{at}}"},
        ),
    ),
    "Members": (
        Panel(
            title="Records handled", unit="suffix: records/s",
            description="Records that handlers have processed, by member, and those that came behind later ones of another source of their task.",
            queries={
                _rate("equipoise_member_records_total", G, "group, member"): "{{group}} {{member}}",
                _rate("equipoise_member_out_of_order_records_total", G, "group"): "{{group}} out of order",
            },
        ),
        Panel(
            title="Handlers running", unit="suffix: handlers",
            description="Mean number of handlers that run at once, waits included. Near the number of tasks: handlers are the bottleneck.",
            queries={_rate("equipoise_member_busy_seconds_total", G, "group, member"): "{{group}} {{member}}"},
        ),
        Panel(
            title="Commits", unit="suffix: commits/s",
            description="Commits, and those that were refused or overtaken because a later owner had begun. A few of those follow a pause.",
            queries={
                _rate("equipoise_member_commits_total", G, "group"): "{{group}}",
                _rate("equipoise_member_fenced_commits_total", G, "group"): "{{group}} fenced",
            },
        ),
        Panel(
            title="Tasks by role", unit="suffix: tasks", stacked=True,
            description="running; opening: granted, and restoring or waiting for a hold; closing; copies: standby, warmup.",
            queries={f"sum by (role) (equipoise_member_tasks{G})": "{{role}}"},
        ),
        Panel(
            title="Tasks running, by member", unit="suffix: tasks",
            description="Tasks that each member runs.",
            queries={'sum by (group, member) (equipoise_member_tasks{group=~"$group",role="running"})': "{{group}} {{member}}"},
        ),
        Panel(
            title="Failed tasks, by member", unit="suffix: tasks",
            description="Tasks that handle nothing more. docs/applications-by-task.md#errors",
            queries={f"sum by (group, member) (equipoise_member_parked_tasks{G})": "{{group}} {{member}}"},
        ),
        Panel(
            title="Handler times", unit="s",
            description="Calls of handlers, all members: the median and the 99th percentile.",
            queries={
                _quantile(0.5, "equipoise_member_handler_seconds"): "p50",
                _quantile(0.99, "equipoise_member_handler_seconds"): "p99",
            },
        ),
        Panel(
            title="Dropped records", unit="short",
            description="Records that were dropped within 10 min, by whom and why. docs/applications-by-task.md#dropped-records",
            queries={
                f"sum by (group, by, reason) (increase(equipoise_member_dropped_records_total{G}[10m]))": "{{group}} {{by}} {{reason}}",
            },
        ),
        Panel(
            title="Failures, damaged copies", unit="short",
            description="Failures of handlers and serdes by what was done then, and local copies that were given up, within 10 min.",
            queries={
                f"sum by (group, outcome) (increase(equipoise_member_failures_total{G}[10m]))": "{{group}} {{outcome}}",
                f"sum by (group) (increase(equipoise_member_damaged_copies_total{G}[10m]))": "{{group}} damaged copies",
            },
        ),
        Panel(
            title="Held back by quotas", unit="percentunit",
            description="Part of the time for which quotas of the brokers hold back the process of a member.",
            queries={_rate("equipoise_member_throttled_seconds_total", G, "group, member"): "{{group}} {{member}}"},
        ),
        Panel(
            title="Restoring", unit="suffix: records/s",
            description="Records of changelogs applied to copies and opening tasks, by member.",
            queries={_rate("equipoise_member_restored_records_total", G, "group, member"): "{{group}} {{member}}"},
        ),
        Panel(
            title="Restore lag: the ten largest", unit="short",
            description="Records that a copy, or a task that opens, has still to restore.",
            queries={f"topk(10, equipoise_member_restore_lag_records{G})": "{{group}} {{task}} at {{member}}"},
        ),
        Panel(
            title="Source lag: the ten largest", unit="short",
            description="Source records still to be processed by a running task.",
            queries={f"topk(10, equipoise_member_source_lag_records{G})": "{{group}} {{task}} at {{member}}"},
        ),
        Panel(
            title="Lease left", unit="s",
            description="Time until the member's lease is over unless it is renewed. 0: it is over, and nothing runs there.",
            queries={f"min by (group, member) (equipoise_member_lease_left_seconds{G})": "{{group}} {{member}}"},
        ),
    ),
    "Workers and the log": (
        Panel(
            title="Facts", unit="suffix: facts/s", stacked=True,
            description="Facts folded, by kind, without those of takeovers.",
            queries={_rate("equipoise_facts_total", '{takeover="false"}', "kind"): "{{kind}}"},
        ),
        Panel(
            title="Decisions", unit="suffix: decisions/s", stacked=True,
            description="Decisions, by kind. EventRejected: the leader rejects what a member sends; unexpected: what no member in order sends.",
            queries={
                _rate("equipoise_decisions_total", by="kind"): "{{kind}}",
                _rate("equipoise_rejected_facts_total", by="instance"): "unexpected rejections of {{instance}}",
            },
        ),
        Panel(
            title="Time to fold a fact", unit="s",
            description="Time to fold one fact and decide: median, and 99 of 100 facts.",
            queries={_quantile(0.5, "equipoise_fold_seconds"): "median", _quantile(0.99, "equipoise_fold_seconds"): "99 %"},
        ),
        Panel(
            title="Takeovers", unit="s",
            description="Mean time to take a partition over. Nothing is decided in it meanwhile.",
            queries={
                "rate(equipoise_takeover_seconds_sum[$__rate_interval]) / rate(equipoise_takeover_seconds_count[$__rate_interval])": "{{instance}}"
            },
        ),
        Panel(
            title="Failed takeovers", unit="suffix: per hour",
            description="Takeover sessions that failed and were retried. A broker or a topic is in trouble; the worker's log says which.",
            queries={f"{_rate('equipoise_takeovers_failed_total', by='instance')} * 3600": "{{instance}}"},
        ),
        Panel(
            title="Partitions led, by worker", unit="suffix: partitions",
            description="Partitions that each worker has taken over.",
            queries={"sum by (instance) (equipoise_partition_leading)": "{{instance}}"},
        ),
        Panel(
            title="Facts folded, by partition", unit="suffix: facts/s",
            description="How fast the position of each partition rises.",
            queries={"max by (partition) (rate(equipoise_partition_position[$__rate_interval]))": "partition {{partition}}"},
        ),
        Panel(
            title="Facts kept", unit="short",
            description="Facts from the first one that is left to the next one. Only where a worker deletes records.",
            queries={
                "max by (partition) (equipoise_partition_position) - max by (partition) (equipoise_log_first_offset)": "partition {{partition}}"
            },
        ),
        Panel(
            title="Retention held", unit="none",
            description="1: records that are due to be deleted are kept, and the worker's log says why. docs/logs.md#retention",
            queries={"max by (partition) (equipoise_retention_held)": "partition {{partition}}"},
        ),
        Panel(
            title="Ticks, probings, checkpoints and bases", unit="suffix: per hour",
            description="Ticks that workers sent, evaluations after probing_interval_ms, checkpoints and bases that they stored.",
            queries={
                f"{_rate(f'equipoise_{name}_total')} * 3600": name for name in ("ticks", "probings", "checkpoints", "bases")
            },
        ),
        Panel(
            title="Rejected records", unit="suffix: per hour",
            description="Records that name no group: an unauthorised sender writes to the topic of facts.",
            queries={f"{_rate('equipoise_rejected_records_total', by='instance')} * 3600": "{{instance}}"},
        ),
        Panel(
            title="Rounds asked over HTTP", unit="suffix: rounds/s", stacked=True,
            description="Rounds that applications asked for, by status of the answer. docs/streams.md",
            queries={_rate("equipoise_rounds_asked_total", by="status"): "{{status}}"},
        ),
        Panel(
            title="Time to answer a round", unit="s",
            description="Time to answer a round over HTTP: median, and 99 of 100.",
            queries={_quantile(0.5, "equipoise_round_seconds"): "median", _quantile(0.99, "equipoise_round_seconds"): "99 %"},
        ),
    ),
    "Groups of others that are led": (
        Panel(
            title="Seats", unit="suffix: seats", stacked=True,
            description="Seats of equipoise by state. refused: the group cannot be led, and the log says why. docs/seat.md#watch-it",
            queries={"sum by (state) (equipoise_lead_seat)": "{{state}}"},
        ),
        Panel(
            title="Members beside the seats", unit="suffix: members",
            description="Clients in each group, and seats. A group without clients is read by nobody.",
            queries={
                "max by (group) (equipoise_lead_members)": "{{group}}",
                "max by (group) (equipoise_lead_seats)": "{{group}} seats",
            },
        ),
        Panel(
            title="Lag of led groups", unit="short",
            description="Records behind each group's commits, and partitions without a commit, whose lag is not known.",
            queries={
                "max by (group) (equipoise_lead_lag_records)": "{{group}}",
                "max by (group) (equipoise_lead_uncommitted_partitions)": "{{group}} partitions without a commit",
            },
        ),
        Panel(
            title="Not where it was decided", unit="suffix: moves",
            description="Partitions or tasks that members do not have yet as equipoise decided last.",
            queries={"max by (group) (equipoise_lead_pending_moves)": "{{group}}"},
        ),
        Panel(
            title="Waits of rebalances", unit="s",
            description="How long the seats have waited for the members of a rebalance that is under way: for the slowest to poll.",
            queries={"max by (group) (equipoise_lead_rebalance_wait_seconds)": "{{group}}"},
        ),
        Panel(
            title="Silent seats", unit="suffix: per hour",
            description="Seats that did not answer for their session: rebalances of classic groups wait for them.",
            queries={"sum by (group) (increase(equipoise_lead_silent_seats_total[1h]))": "{{group}}"},
        ),
        Panel(
            title="As of", unit="s",
            description="How old the coordinators' last answers are, from which the other panels of this row are.",
            queries={"min by (group) (equipoise_lead_answer_age_seconds)": "{{group}}"},
        ),
        Panel(
            title="Last decision, and in this state", unit="s",
            description="Time since a seat's last decision, and since it leads, stands by or joins.",
            queries={
                "min by (group) (equipoise_lead_decision_age_seconds)": "{{group}} decided",
                "min by (group, instance) (equipoise_lead_state_seconds)": "{{group}} on {{instance}}, in its state",
            },
        ),
    ),
    "Groups that are watched": (
        Panel(
            title="Rebalances by cause", unit="suffix: per hour", stacked=True,
            description="What equipoise record counts of groups that anything leads. docs/incidents.md#watch-groups",
            queries={"sum by (group, cause) (increase(equipoise_rebalances_total[1h]))": "{{group}} {{cause}}"},
        ),
        Panel(
            title="Work that stood still, by cause", unit="suffix: partitions",
            description="Mean number of partitions in which work stood still, counted when it goes on.",
            queries={_rate("equipoise_rebalance_unavailable_partition_seconds_total", by="group, cause"): "{{group}} {{cause}}"},
        ),
        Panel(
            title="Rebalances are counted to", unit="s",
            description="How far behind the counts of this row are: a minute, unless brokers are away.",
            queries={"time() - max(equipoise_rebalances_counted_to_timestamp_seconds)": "behind"},
        ),
    ),
    "Verification on Spark": (
        Panel(
            title="Records verified", unit="suffix: records/s",
            description="What equipoise spark stream has read and verified. docs/spark.md",
            queries={
                f"sum(rate(equipoise_stream_{name}[$__rate_interval]))": name for name in ("records", "facts", "decisions")
            },
        ),
        Panel(
            title="Alerts of the verification", unit="suffix: alerts",
            description="Groups whose published decisions are not the recomputed ones, or cannot be verified.",
            queries={"sum(equipoise_stream_alerts)": "alerts"},
        ),
    ),
    "Settings": (
        Panel(
            kind="table", title="Settings in force", unit="none",
            description="Number of groups with each value of each setting. docs/tuning.md",
            queries={"sum by (setting, value) (equipoise_setting_groups)": ""},
        ),
        Panel(
            title="Changes", unit="suffix: changes",
            description="Groups in which a setting has changed within an hour, and verdicts on planned changes: `equipoise timeline --changes`.",
            queries={
                "sum by (setting) (increase(equipoise_setting_changes_total[1h]))": "{{setting}}",
                "sum by (verdict) (increase(equipoise_changes_judged_total[1h]))": "judged: {{verdict}}",
            },
        ),
    ),
}  # fmt: skip # a table: one row a line


def panels() -> Iterator[dict[str, Any]]:
    """The panels and the headings of rows, placed."""
    number, y = 1, 0
    for index, panel in enumerate(NOW):
        yield panel.document(number, index * 24 // len(NOW), y, 24 // len(NOW), 4)
        number += 1
    y += 4
    for heading, row in ROWS.items():
        yield {"id": number, "type": "row", "title": heading, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        number, y = number + 1, y + 1
        width = 24 // min(len(row), PANELS_A_ROW)
        for index, panel in enumerate(row):
            line, place = divmod(index, PANELS_A_ROW)
            yield panel.document(number, place * width, y + line * HEIGHT, width, HEIGHT)
            number += 1
        y += (len(row) - 1) // PANELS_A_ROW * HEIGHT + HEIGHT


def render() -> str:
    """The dashboard as JSON."""
    choices = {
        "name": "group", "label": "Group", "type": "query", "datasource": DATASOURCE, "query": "label_values(equipoise_generation, group)",
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip # a table: one row a line
    dashboard = {
        "uid": "equipoise",
        "title": "equipoise",
        "description": "Groups, members and workers. docs/metrics.md#metrics explains each metric.",
        "tags": ["equipoise", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}, choices]},
        "annotations": {"list": []},
        "panels": list(panels()),
    }
    return json.dumps(dashboard, indent=2) + "\n"
