"""Workers of a log that are older than this build: they say it by their client id in their consumer
group. An older one halts the group in which it meets a fact that it does not know
(docs/protocol.md#l6).
"""

from __future__ import annotations

import asyncio

from equipoise.events import codec
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.hosting.runtime import DeployedRuntime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, repeated
from equipoise.log.kafka.log_topics import Topics
from equipoise.replay.all_clear import AskedNow
from equipoise.worker.faust_group import CLIENT_ID, group_name

ASK_S = 10.0
"""A rebalance of the workers is over by then."""


async def ask_workers(connection: Connection, topics: Topics) -> AskedNow:
    """Asks how many workers of the log run. Raises nothing."""
    from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

    name, workers, unknown = group_name(topics), None, ""
    try:
        async with asyncio.timeout(ASK_S), ConsumerGroup(connection, name) as group:
            workers = len(await repeated(group.members, ASK_S))
    except GroupAuthorizationFailedError:
        unknown = f"this user may not describe group {name}"
    except (KafkaError, OSError, EquipoiseError) as error:
        unknown = f"group {name} cannot be described: {type(error).__name__} {error}"
    return AskedNow(workers=workers, unknown=unknown, now_ms=DeployedRuntime().wall_us() // 1_000)


async def check_workers_read(settings: LiveSettings) -> str:
    """Returns why it is not known whether every worker of the log reads the facts of this build;
    "": all that run do. Raises InputError when one does not.
    """
    from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

    name = group_name(settings)
    async with ConsumerGroup(settings, name) as group:
        try:
            members = await repeated(group.members, ASK_S)
        except GroupAuthorizationFailedError:
            return f"this user may not describe group {name}"
        except (KafkaError, OSError) as error:
            return f"group {name} cannot be described: {type(error).__name__} {error}"
    older = sorted({each.host for each in members if _read_by(each.client_id) < codec.FACT_VERSIONS})
    if older:
        fix = "upgrade workers first (docs/restarts.md#upgrade)"
        raise InputError(f"a worker at {', '.join(older)} does not know every fact of this build and would halt the group; {fix}")
    return ""


def _read_by(client_id: str) -> int:
    """Returns the `FACT_VERSIONS` of a worker with this client id; 0: it says none. Builds until
    December 2026 say less than any later one: the newest kind that they read.
    """
    number = client_id.removeprefix(CLIENT_ID)
    return int(number) if client_id.startswith(CLIENT_ID) and number.isascii() and number.isdecimal() else 0
