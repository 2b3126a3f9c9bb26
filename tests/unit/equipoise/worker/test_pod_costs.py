"""Pods that are to go are marked before an autoscaler is told to run fewer members: beside a server
that speaks the part of Kubernetes' API that is used, and removes pods as a ReplicaSet does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from equipoise.assignors.scale_down import Keep, scale_down
from equipoise.events.errors import InputError
from equipoise.replay.sizing.policy import FollowingPolicy
from equipoise.statemachine.round_problem import build_problem
from equipoise.worker.group_sizes import GroupSizes, NoAnswerError
from equipoise.worker.pod_costs import ANNOTATION, PodApi, PodsNotMarkedError
from tests.unit.equipoise.worker.test_group_sizes import Clock, answered, host

LOW = FollowingPolicy(lag_s=20.0, low_for_s=600)


class Cluster:
    """Pods of one namespace."""

    def __init__(self, *names: str, status: int = 200) -> None:
        self.pods: dict[str, dict[str, str]] = {name: {} for name in names}
        self.status = status
        self.tokens: set[str | None] = set()

    async def patch(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        assert request.content_type == "application/merge-patch+json"
        assert request.match_info["namespace"] == "shop"
        pod = self.pods.get(request.match_info["pod"])
        if self.status != 200 or pod is None:
            return web.json_response({"kind": "Status"}, status=self.status if self.status != 200 else 404)
        pod.update(json.loads(await request.text())["metadata"]["annotations"])
        return web.json_response({"kind": "Pod"})

    def scale(self, replicas: int) -> set[str]:
        """Removes as a ReplicaSet does among pods that are alike but for their cost."""
        ordered = sorted(self.pods, key=lambda name: int(self.pods[name].get(ANNOTATION, "0")))
        return set(ordered[: len(ordered) - replicas])


@asynccontextmanager
async def serving(cluster: Cluster, folder: Path) -> AsyncIterator[PodApi]:
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("shop")
    app = web.Application()
    app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{pod}", cluster.patch)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield PodApi(url=f"http://127.0.0.1:{runner.addresses[0][1]}", folder=folder)
    finally:
        await runner.cleanup()


async def test_members_that_cost_least_are_the_pods_that_are_removed(tmp_path: Path) -> None:
    there = host(100)
    members = there.lead.groups["orders"].machine.state.members
    cluster = Cluster(*members)
    async with serving(cluster, tmp_path) as api:
        sizes = GroupSizes(lambda group: there, Clock(), api)  # type: ignore[arg-type, return-value]
        try:
            found = await answered(sizes, LOW)
        finally:
            await sizes.close()
    assert found["members"] < len(members)
    picked = scale_down(build_problem(there.lead.groups["orders"].machine.state), Keep.parse(str(found["members"]))).asked
    assert cluster.scale(found["members"]) == {each.member for each in picked} == set(found["leave"])
    assert cluster.tokens == {"Bearer secret"}


async def test_size_is_refused_when_pods_cannot_be_marked(tmp_path: Path) -> None:
    there = host(100)
    async with serving(Cluster(status=403), tmp_path) as api:
        sizes = GroupSizes(lambda group: there, Clock(), api)  # type: ignore[arg-type, return-value]
        try:
            with pytest.raises(NoAnswerError, match="right to patch pods") as caught:
                await answered(sizes, LOW)
            assert caught.value.status == 503
        finally:
            await sizes.close()


async def test_former_marks_are_taken_away(tmp_path: Path) -> None:
    cluster = Cluster("m1", "m2", "m3")
    async with serving(cluster, tmp_path) as api:
        await api.mark(["m3"], ["m1", "m2"])
        assert cluster.scale(2) == {"m3"}
        await api.mark(["m1"], ["m2", "m3"])
        assert cluster.scale(2) == {"m1"}
        with pytest.raises(PodsNotMarkedError, match="pod 'other' gets no deletion cost \\(404\\): the id of a member must be the name of its pod"):
            await api.mark(["other"], [])


async def test_api_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(refused, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(PodsNotMarkedError, match=f"{url} does not answer"):
            await PodApi(url=url, folder=tmp_path).mark(["m1"], [])


def test_api_is_that_of_the_cluster_or_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="this process is in no pod"):
        PodApi.of("in-cluster")
    with pytest.raises(InputError, match="'kubernetes' is no URL"):
        PodApi.of("kubernetes")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert PodApi.of("in-cluster").url == "https://[fd00::1]:6443"
    assert PodApi.of("http://127.0.0.1:8001/").url == "http://127.0.0.1:8001"
