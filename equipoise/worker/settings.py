"""Settings of a worker (`equipoise.hosting.live_settings` says how they are read)."""

from __future__ import annotations

import attrs

from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError
from equipoise.hosting.changed_settings import capacity_of
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.declared_settings import setting

RELOADED = ("log_level", "log_format", "observe_interval_ms", "checkpoint_facts", "metrics_groups")
"""Settings of a worker that SIGHUP reloads. Others are part of connections, topics or ports."""


@attrs.frozen(kw_only=True)
class WorkerSettings(LiveSettings):
    """Settings of a worker. Names that end in ``_ms`` are in milliseconds."""

    partitions: int = setting(1, "Partitions of a log that this worker makes; an existing log keeps its own.", validator=fields.integer(1, 10_000))
    replication: int = setting(
        0, "Replicas of topics that this worker makes; 0: three, or as many as there are brokers.", validator=fields.integer(0, 100)
    )
    http_host: str = setting("127.0.0.1", "Address that serves health, metrics and states; 0.0.0.0 for everybody.", validator=fields.text())
    http_port: int = setting(8090, "Port of that address; 0: any free one.", validator=fields.integer(0, 65_535))
    http_token: str = setting(
        "", "Who asks for a round, or sees the console, must name this token; needed where http_host is not the loopback.", secret=True
    )
    console_behind_proxy: bool = setting(
        False, "Everybody sees the console who reaches http_host, because a proxy in front of it authenticates.", validator=fields.boolean
    )
    http_hosts: str = setting(
        "", "Further names under which that address is asked, as by a proxy, with commas between them; *.example.com for all of a domain."
    )
    http_peers: str = setting(
        "", "Where to ask the other workers of this log how many members a group should run: host:port, with commas. A name may be all of them."
    )
    http_tls_cert: str = setting("", "File with the certificate (PEM) by which that address is served over TLS.")
    http_tls_key: str = setting("", "File with the key of that certificate (PEM).")
    worker_session_timeout_ms: int = setting(
        10_000, "A silent worker's partitions go to another worker after this time.", validator=fields.integer(1_000, 3_600_000)
    )
    witness: bool = setting(
        False,
        "When this worker is killed, a process beside it takes it out of its consumer group, so that the next one leads at once.",
        validator=fields.boolean,
    )
    observe_interval_ms: int = setting(10_000, "Time between two reads of the end offsets of the groups' topics.", validator=fields.integer(100))
    metrics_groups: int = setting(
        1_000,
        "Groups that /metrics has series of by name: of more, those at rest are left out first; 0: only totals of all.",
        validator=fields.integer(0, 1_000_000),
    )
    checkpoint_facts: int = setting(40_000, "Facts in a partition between two checkpoints of all its groups.", validator=fields.integer(1))
    retention_ms: int = setting(
        0, "Facts and decisions are kept so long, and then deleted behind a base; 0: for ever.", validator=fields.integer(0, 10 * 365 * 86_400_000)
    )
    retention_bytes: int = setting(
        0,
        "Above about so many bytes of facts and decisions in a partition, older ones are deleted behind a base; 0: no limit.",
        validator=fields.integer(0, 2**60),
    )
    base_interval_ms: int = setting(
        0, "Time between two bases of a log with retention; 0: a quarter of retention_ms, or an hour.", validator=fields.integer(0, 30 * 86_400_000)
    )
    otlp_endpoint: str = setting(
        "", "Where each rebalance goes as a trace, over OTLP/HTTP: http://host:4318/v1/traces; empty: nowhere. Needs the extra otel."
    )
    lead_groups: str = setting(
        "", "Groups of any clients that this process leads beside, as `equipoise lead` does: orders-*,payments; two workers are their two seats."
    )
    lead_folder: str = setting("", "Folder for the logs of these groups, one each.")
    lead_hold_ms: int = setting(
        0, "How long partitions of a member of these groups that is gone wait for it; not of Kafka Streams.", validator=fields.integer(0, 240_000)
    )
    lead_capacity: str = setting("", "Clients of these groups with this id (with * and ?) get N times as much: CLIENT_ID=N, with commas.")
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR.", validator=fields.one_of("DEBUG", "INFO", "WARNING", "ERROR"))
    log_format: str = setting("text", "text, or json: one JSON document a line (docs/json.md).", validator=fields.one_of("text", "json"))

    def __attrs_post_init__(self) -> None:
        LiveSettings.__attrs_post_init__(self)
        if bool(self.http_tls_cert) != bool(self.http_tls_key):
            raise FieldError("WorkerSettings.http_tls_key", "http_tls_cert and http_tls_key belong together; set both or none")
        if self.lead_groups and not self.lead_folder:
            raise FieldError("WorkerSettings.lead_folder", "lead_groups needs a folder for their logs; name one that outlives the process")
        try:
            _ = self.lead_capacities
        except InputError as error:
            raise FieldError("WorkerSettings.lead_capacity", str(error)) from None
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise FieldError("WorkerSettings.otlp_endpoint", f"{self.otlp_endpoint!r} is no URL; write http://host:4318/v1/traces")

    @property
    def lead_capacities(self) -> dict[str, int]:
        """Pattern of a ``client.id`` -> capacity, of `lead_capacity`."""
        return dict(capacity_of(each) for each in self.lead_capacity.split(",") if each.strip())

    @property
    def has_retention(self) -> bool:
        """Returns whether this worker stores bases and deletes records behind them."""
        return bool(self.retention_ms or self.retention_bytes)

    @property
    def time_between_bases_ms(self) -> int:
        """`base_interval_ms`, or what its 0 stands for."""
        return self.base_interval_ms or self.retention_ms // 4 or 3_600_000
