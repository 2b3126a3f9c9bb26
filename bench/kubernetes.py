"""`python -m bench.kubernetes`: a group of member processes on a real broker, scaled by a real KEDA
in a real Kubernetes, which follows what a worker recommends (docs/change.md).

Pods are member processes: this command is the kubelet. The objects are those of deploy/keda, with
the addresses of this machine. The load rises to that of five members, and falls to that of two.
Seen: that KEDA has at least five pods run then, at most three in the end, that the pods which end
are those that the worker has marked, and what that cost. Ends with 1 when one of it is not so.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml  # type: ignore[import-untyped]

from bench.kubernetes_parts import Api, Kubernetes, KubernetesFailedError, build
from bench.live import WorkerProcess, broker
from bench.live_scaling import PREFIX, TASKS, LiveGroup
from equipoise.events.tasks import TaskId
from equipoise.log import open_log
from equipoise.replay.spans import Span
from equipoise.replay.whatif.recorded_costs import read_recording
from equipoise.worker.pod_costs import ANNOTATION, FIRST_TO_GO
from equipoise.worker.settings import WorkerSettings
from tests.live.group_clients import ROOT
from tools.brokers import free_ports

GROUP = "orders"
DEPLOY = ROOT / "deploy" / "keda"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENT = f"/apis/apps/v1/namespaces/default/deployments/{GROUP}"
LOW_FOR_S = 120
MEMBER_PER_S = 100.0
LOADS = ((45.0, 0.0), (150.0, 2.2), (300.0, 5.0), (720.0, 1.4))
"""(until, in seconds; load in members' worth)."""


def load(at_s: float) -> Mapping[TaskId, float]:
    """Records a second of each task."""
    members = next((each for until_s, each in LOADS if at_s < until_s), LOADS[-1][1])
    return dict.fromkeys(TASKS, members * MEMBER_PER_S / len(TASKS))


class Kubelet:
    """Starts a member for each pod, and ends it when the pod is to end."""

    def __init__(self, api: Api, group: LiveGroup) -> None:
        self._api, self._group = api, group
        self.ended: dict[str, str] = {}
        """Pod that was told to end -> its cost then."""

    async def work(self) -> None:
        while True:
            for pod in (await asyncio.to_thread(self._api.ask, "GET", f"{PODS}?labelSelector=app={GROUP}"))["items"]:
                await self._see(pod)
            await asyncio.sleep(0.5)

    async def _see(self, pod: dict[str, Any]) -> None:
        name, group = pod["metadata"]["name"], self._group
        if "deletionTimestamp" in pod["metadata"]:
            if name in self.ended and name not in group.members:
                await self._ask("DELETE", name, {"gracePeriodSeconds": 0})
            elif name not in self.ended:
                self.ended[name] = pod["metadata"].get("annotations", {}).get(ANNOTATION, "0")
                group.end(name)
        elif name not in group.members:
            group.start(name)
            target = {"apiVersion": "v1", "kind": "Node", "name": "here"}
            await self._ask("POST", f"{name}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target})
            ready = [{"type": each, "status": "True"} for each in ("PodScheduled", "Initialized", "Ready")]
            status = {"status": {"phase": "Running", "conditions": ready}}
            await self._ask("PATCH", f"{name}/status", status, kind="application/merge-patch+json")

    async def _ask(self, method: str, pod: str, body: Any, **how: str) -> None:
        await asyncio.to_thread(self._api.ask, method, f"{PODS}/{pod}", body, **how)


def objects(name: str, addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects of a file of deploy/keda, with these addresses in place of its own."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    for theirs, ours in addresses.items():
        text = text.replace(theirs, ours)
    assert not addresses or "equipoise-workers" not in text, "no address of a cluster is left"
    return [each for each in yaml.safe_load_all(text) if each]


def begin(kubernetes: Kubernetes) -> Path:
    """Makes what the group needs. Returns a file by which a worker is its service account."""
    api = kubernetes.api
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}})
    for each in objects("workers.yaml", {}):
        api.apply(each)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7_200}}
    answer = api.ask("POST", "/api/v1/namespaces/default/serviceaccounts/equipoise-worker/token", asked)
    labels = {"app": GROUP}
    pod = {"terminationGracePeriodSeconds": 120, "containers": [{"name": "member", "image": "none"}]}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": GROUP}, "spec": spec})
    return kubernetes.config(answer["status"]["token"])


async def followed(kubernetes: Kubernetes, bootstrap: str, folder: Path, ports: tuple[int, int], trigger: str) -> bool:
    """Lives through the loads. Returns whether KEDA followed."""
    api, group = kubernetes.api, LiveGroup(bootstrap, folder, GROUP, load, MEMBER_PER_S)
    kubelet = Kubelet(api, group)
    async with group.begun(0) as ends:
        began_ms, began_s = round(time.time() * 1_000), time.monotonic()
        working = asyncio.create_task(kubelet.work())
        try:
            addresses = {"http://equipoise-workers:8090": f"http://127.0.0.1:{ports[0]}", "equipoise-workers:8091": f"127.0.0.1:{ports[1]}"}
            addresses |= {"most=12": f"most=12&low_for_s={LOW_FOR_S}", 'most: "12"': f'most: "12", low_for_s: "{LOW_FOR_S}"'}
            for each in objects({"http": "scaled-object.yaml", "grpc": "external-scaler.yaml"}[trigger], addresses):
                await asyncio.to_thread(api.apply, each)
            replicas: list[int] = []
            worst_s = 0.0
            for second in range(round(LOADS[-1][0])):
                await asyncio.sleep(max(0.0, began_s + second - time.monotonic()))
                if working.done():
                    working.result()
                lag_s = await group.look(ends)
                worst_s = max(worst_s, lag_s)
                wanted = (await asyncio.to_thread(api.ask, "GET", DEPLOYMENT))["spec"]["replicas"]
                if not replicas or replicas[-1] != wanted:
                    replicas.append(wanted)
                    click.echo(f"{second:>4} s: {wanted} pods wanted, {len(group.members)} members, lag {lag_s:.0f} s")
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        costs = await asyncio.to_thread(recorded, bootstrap, began_ms)
    marked = [name for name, cost in kubelet.ended.items() if cost == FIRST_TO_GO]
    click.echo(f"pods wanted: {replicas}; longest lag {worst_s:.0f} s; {costs}; {len(kubelet.ended)} pods ended, {len(marked)} of them marked before")
    return max(replicas) >= 5 and replicas[-1] <= 3 and len(marked) == len(kubelet.ended) > 0


def recorded(bootstrap: str, began_ms: int) -> str:
    with open_log(f"kafka://{bootstrap}/{PREFIX}") as log:
        found = read_recording(log.read(group=GROUP), group=GROUP, span=Span(from_ms=began_ms)).recorded
    return f"{found.rebalances:.0f} rebalances, {found.moves:.0f} moves, {found.unavailable_task_seconds:.1f} task-s unavailable"


@click.command()
@click.option("--trigger", type=click.Choice(["http", "grpc"]), default="http", show_default=True, help="How KEDA asks.")
def main(trigger: str) -> None:
    """Has a real KEDA follow a worker's recommendation."""
    build()
    http, scaler, proxy = free_ports(3)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="equipoise-kubernetes-")))
        kubernetes = stack.enter_context(Kubernetes(folder))
        bootstrap = stack.enter_context(broker())
        command = ["kubectl", f"--kubeconfig={begin(kubernetes)}", "proxy", f"--port={proxy}"]
        asking = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        stack.callback(asking.terminate)
        stack.enter_context(
            WorkerProcess(
                WorkerSettings(bootstrap=bootstrap, prefix=PREFIX),
                "--http-port",
                str(http),
                "--scaler-port",
                str(scaler),
                "--pod-api",
                f"http://127.0.0.1:{proxy}",
            )
        )
        try:
            good = asyncio.run(followed(kubernetes, bootstrap, folder, (http, scaler), trigger))
        except KubernetesFailedError as error:
            raise click.ClickException(f"{error}\n{kubernetes.said('operator')}") from None
        finally:
            click.echo(kubernetes.said("operator", 5), err=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
