"""Has Kubernetes remove the members that cost least: before an autoscaler is told to run fewer, the
pods that are to go get the annotation ``controller.kubernetes.io/pod-deletion-cost``, by which a
Deployment picks. Each drains itself when it is told to end (docs/change.md).

The id of a member must be the name of its pod, as in deploy/kubernetes.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import aiohttp
import attrs

from equipoise.events.errors import InputError

_LOG = logging.getLogger(__name__)
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-100"
"""Cost of pods that go first; others have 0, which is Kubernetes' default, too."""
IN_CLUSTER = "in-cluster"
SECRETS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_S = 5.0


class PodsNotMarkedError(Exception):
    """Not all pods have their cost."""


@attrs.frozen(kw_only=True)
class PodApi:
    """An API server of Kubernetes. `folder`: token, namespace and ca.crt of a service account; what
    is not there is not used.
    """

    url: str
    folder: Path = SECRETS

    @classmethod
    def of(cls, text: str) -> PodApi:
        """Returns the API of a setting: a URL, or the one of the cluster in which this process is.
        Raises InputError.
        """
        if text != IN_CLUSTER:
            if not text.startswith(("http://", "https://")):
                raise InputError(f"pod_api: {text!r} is no URL; write {IN_CLUSTER}, or https://host:port")
            return cls(url=text.rstrip("/"))
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InputError(f"pod_api: {IN_CLUSTER}, and this process is in no pod (KUBERNETES_SERVICE_HOST is not set); name a URL")
        return cls(url=f"https://{f'[{host}]' if ':' in host else host}:{port}")

    async def mark(self, leave: Collection[str], others: Collection[str]) -> None:
        """Sets the cost of the pods of the group's members. Raises PodsNotMarkedError."""
        costs = {**dict.fromkeys(sorted(others), "0"), **dict.fromkeys(sorted(leave), FIRST_TO_GO)}
        headers = {"Content-Type": "application/merge-patch+json", "Accept": "application/json"}
        try:
            namespace = self._secret("namespace") or "default"
            token = self._secret("token")  # Kubernetes renews it
            if token:
                headers["Authorization"] = f"Bearer {token}"
            certificates = self.folder / "ca.crt"
            tls = ssl.create_default_context(cafile=str(certificates) if certificates.exists() else None)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S), headers=headers) as http:
                for pod, cost in costs.items():
                    body = json.dumps({"metadata": {"annotations": {ANNOTATION: cost}}})
                    url = f"{self.url}/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"
                    async with http.patch(url, data=body, ssl=tls) as answer:
                        if answer.status != 200:
                            raise PodsNotMarkedError(f"pod {pod!r} gets no deletion cost ({answer.status}): {_fix(answer.status)}")
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise PodsNotMarkedError(f"{self.url} does not answer, so that pods get no deletion cost: {error!r}") from None
        _LOG.info("pods that go first: %s", ", ".join(sorted(leave)))

    def _secret(self, name: str) -> str:
        file = self.folder / name
        return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def _fix(status: int) -> str:
    if status in (401, 403):
        return "its service account needs the right to patch pods (deploy/keda/workers.yaml)"
    if status == 404:
        return "the id of a member must be the name of its pod, in the worker's namespace"
    return "see the log of the API server"
