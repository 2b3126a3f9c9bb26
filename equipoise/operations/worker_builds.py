"""Workers of a log that are older than this build: they say it by their client id in their consumer
group. An older one halts the group in which it meets a fact that it does not know
(docs/protocol.md#l6).
"""

from __future__ import annotations

import asyncio

from equipoise.events import codec
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.hosting.live_settings import LiveSettings
from equipoise.kafka.consumer_groups import ConsumerGroup, repeated
from equipoise.replay.undecided import Deciding, Undecided
from equipoise.worker.faust_group import CLIENT_ID, group_name

ASK_S = 10.0
"""A rebalance of the workers is over by then."""


async def deciding(settings: LiveSettings, undecided: Undecided | None = None) -> Deciding:
    """Returns who decides in the groups of the log. Raises nothing."""
    from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

    name = group_name(settings)
    try:
        async with asyncio.timeout(ASK_S), ConsumerGroup(settings, name) as group:
            return Deciding(undecided=undecided, workers=len(await repeated(group.members, ASK_S)))
    except GroupAuthorizationFailedError:
        return Deciding(undecided=undecided, unknown=f"this user may not describe group {name}")
    except (KafkaError, OSError, EquipoiseError) as error:
        return Deciding(undecided=undecided, unknown=f"group {name} cannot be described: {type(error).__name__} {error}")


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
