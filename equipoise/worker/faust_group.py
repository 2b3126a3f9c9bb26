"""The consumer group of the workers, in which Faust hands out partitions.

The app subscribes to the topic of checkpoints, which has as many partitions as the facts and almost
no traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from equipoise.events import codec
from equipoise.hosting.live_settings import LiveSettings
from equipoise.log.kafka.log_topics import Topics
from equipoise.worker.led_partitions import Generation
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_STOP_FAUST_S = 2.0
_SLOW_START_S = 10.0
CLIENT_ID = "equipoise-worker-reads-"
"""Client id in the consumer group, before the newest kind of facts that the worker reads: so others
know before they write one (`equipoise.operations.worker_builds`).
"""
_HEARTBEAT_S = 0.5
"""Longest time between two heartbeats to the consumer group: so late a worker learns that another
one has left.
"""


def group_name(log: LiveSettings | Topics) -> str:
    """Returns the name of the consumer group of the log's workers."""
    return f"{log.prefix}.worker"


class FaustGroup:
    """The membership of one worker. `assigned` is called with its partitions after each rebalance,
    `revoked` before it. `start` and `stop` may follow each other.
    """

    def __init__(self, settings: WorkerSettings, assigned: Callable[[list[int]], Awaitable[None]], revoked: Callable[[], None]) -> None:
        self._settings, self._assigned, self._revoked = settings, assigned, revoked
        self._app: Any = None

    async def start(self, folder: str) -> None:
        """Joins the group. `folder`: for Faust's files. Raises what Faust raises."""
        import faust

        from equipoise.kafka.aiokafka_metadata import restrain

        settings = self._settings
        app = faust.App(
            group_name(settings),
            broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
            broker_credentials=faust_credentials(settings),
            broker_client_id=f"{CLIENT_ID}{codec.FACT_VERSIONS}",
            broker_session_timeout=settings.worker_session_timeout_ms / 1000,
            broker_heartbeat_interval=min(_HEARTBEAT_S, settings.worker_session_timeout_ms / 5000),
            broker_commit_interval=1.0,
            consumer_auto_offset_reset="latest",
            stream_wait_empty=False,  # unacknowledged records must not delay a rebalance
            store="memory://",
            datadir=folder,
            autodiscover=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            loop=asyncio.get_running_loop(),
        )
        places = settings.topics.checkpoints
        topic = app.topic(places, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True)

        async def ignore(stream: Any) -> None:
            async for _ in stream:
                pass  # the host reads checkpoints itself

        async def assigned(app: Any, assigned: Iterable[Any], **_: Any) -> None:
            if self._app is not None:  # it is not stopping
                await self._assigned([place.partition for place in assigned if place.topic == places])

        async def revoked(app: Any, revoked: Iterable[Any], **_: Any) -> None:
            if self._app is not None:
                self._revoked()

        app.agent(topic, name=places)(ignore)
        app.on_partitions_assigned.connect(assigned, weak=False)
        app.on_partitions_revoked.connect(revoked, weak=False)
        app.finalize()
        # Its records are read by the host, and a spare worker has none: Faust would take both for
        # a consumer that is stuck, and log errors about it.
        app.consumer.verify_event_path = lambda now, place: None
        self._app = app
        await _started(app.start(), group_name(settings))
        restrain(app.consumer._thread._consumer._client)  # Faust has no option for it

    async def stop(self) -> None:
        """Leaves the group, if it is in it."""
        app, self._app = self._app, None
        if app is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(app.stop(), _STOP_FAUST_S)

    @property
    def has_ended(self) -> bool:
        """Returns whether Faust does not run."""
        return self._app is None or self._app.crashed or self._app.should_stop

    @property
    def crash(self) -> str:
        """Returns the error by which Faust has ended, behind a colon; "" when it was not started."""
        return "" if self._app is None else f": {self._app.crash_reason!r}"

    def generation(self) -> Generation:
        """Returns as which member the worker is in the group, and in which generation."""
        coordinator = self._app.consumer._thread._consumer._coordinator  # Faust tells nobody
        return coordinator.member_id, coordinator.generation


async def _started(starting: Coroutine[Any, Any, None], group: str) -> None:
    """Starts Faust, which says nothing where it waits for ever."""
    task = asyncio.ensure_future(starting)
    try:
        while not (await asyncio.wait((task,), timeout=_SLOW_START_S))[0]:
            _LOG.warning("Faust has not started yet: consumer group %s has no coordinator, or this user may not Read on it (equipoise doctor)", group)
        task.result()
    finally:
        if task.cancel():
            await asyncio.wait((task,), timeout=_STOP_FAUST_S)


# Faust's credentials for the brokers, from the worker's settings.


def faust_credentials(settings: WorkerSettings) -> Any:
    """Returns what a Faust app takes as `broker_credentials`; None: a connection in plain text."""
    import faust
    from faust.types.auth import AuthProtocol, SASLMechanism

    context = settings.ssl_context
    if settings.security_protocol.startswith("SASL"):
        credentials = faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=context,
            mechanism=SASLMechanism(settings.sasl_mechanism),
        )
        credentials.protocol = AuthProtocol(settings.security_protocol)
        return credentials
    return None if context is None else faust.SSLCredentials(context)
