"""Answers how many members a group should run, whichever worker of the log is asked: one that does
not lead the group asks the others, which `http_peers` names.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs

from equipoise.replay.sizing.autoscaling import FollowingPolicy
from equipoise.worker.group_sizes import GroupSizes, NoAnswerError

FROM_PEER = "Equipoise-From-Worker"
"""Header of a question from another worker, which is not passed on."""
ANSWER_S = 10.0


class AskedWorkers:
    """Asks `sizes`, and then `peers`: ``host:port``; a name with several addresses is all of them."""

    def __init__(self, sizes: GroupSizes, peers: Sequence[str]) -> None:
        self._sizes, self._peers = sizes, peers

    async def answer(self, group: str, policy: FollowingPolicy, *, from_peer: bool = False) -> dict[str, Any]:
        """Returns the answer, as `GroupSizes.answer`. Raises NoAnswerError."""
        try:
            return await self._sizes.answer(group, policy)
        except NoAnswerError as error:
            if error.status != 404 or from_peer or not self._peers:
                raise
            found = await self._ask_peers(group, policy)
            if found is None:
                raise NoAnswerError(503, f"{error}, and no other one answers that it does") from None
            return found

    async def _ask_peers(self, group: str, policy: FollowingPolicy) -> dict[str, Any] | None:
        """Returns the answer of the worker that leads the group; None: none does. Raises
        NoAnswerError where that one has none.
        """
        defaults = attrs.asdict(FollowingPolicy())
        query = {name: str(value) for name, value in attrs.asdict(policy).items() if value != defaults[name]}
        places = [place for peer in self._peers for place in await _addresses(peer)]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S), headers={FROM_PEER: "yes"}) as http:
            for place in places:
                try:
                    async with http.get(f"http://{place}/groups/{quote(group)}/size", params=query) as answer:
                        if answer.status == 404:
                            continue
                        document: dict[str, Any] = await answer.json()
                        if answer.status != 200:
                            raise NoAnswerError(answer.status, str(document.get("problem")))
                        return document
                except (OSError, aiohttp.ClientError, TimeoutError, ValueError):
                    continue
        return None


async def _addresses(peer: str) -> list[str]:
    """Returns all places of a name, as ``ip:port``; none where it is not known."""
    host, _, port = peer.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(f"[{each[4][0]}]:{port}" if each[0] is socket.AF_INET6 else f"{each[4][0]}:{port}" for each in found))
