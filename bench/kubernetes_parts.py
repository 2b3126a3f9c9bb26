"""A real Kubernetes with a real KEDA on this machine, for `bench.kubernetes`: etcd, the API server,
the controllers and KEDA's two processes, built from their sources by Go, without containers. Nodes
are left to the caller, who is the kubelet.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml  # type: ignore[import-untyped]

from tests.live.group_clients import ROOT
from tools.brokers import free_ports

BUILT = ROOT / ".venv" / "kubernetes"
KUBERNETES, ETCD, KEDA = "1.36.3", "3.6.8", "2.21.0"
KEDA_MODULE = "github.com/kedacore/keda/v2"
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "horizontal-pod-autoscaler-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "garbage-collector-controller",
)
PATIENCE_S = 120.0
ADMIN = "equipoise-admin"


class KubernetesFailedError(Exception):
    """A part of Kubernetes or KEDA did not start, or refused something."""


def build() -> None:
    """Builds what is not there: a quarter of an hour with two cores. Raises CalledProcessError."""
    _built(
        "control-plane",
        {"k8s.io/kubernetes": KUBERNETES, "go.etcd.io/etcd/server/v3": ETCD},
        dict.fromkeys(_replaced("k8s.io/kubernetes", KUBERNETES), f"0{KUBERNETES[1:]}"),
        ["k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "go.etcd.io/etcd/server/v3"],
    )
    _built("keda", {KEDA_MODULE: KEDA}, _replaced(KEDA_MODULE, KEDA), [f"{KEDA_MODULE}/cmd/operator", f"{KEDA_MODULE}/cmd/adapter"])


def _replaced(module: str, version: str) -> dict[str, str]:
    """Returns the modules that this one wants replaced -> by which version; "": by its own parts.
    Go follows that in the main module alone.
    """
    text = Path(_module(module, version)["GoMod"]).read_text(encoding="utf-8")
    found = re.findall(r"^(?:replace)?\s*(\S+)(?: v\S+)? => (\S+)(?: v(\S+))?$", text, re.MULTILINE)
    return {name: number for name, other, number in found if other.startswith("./") or other == name}


def _module(module: str, version: str, folder: Path | None = None) -> dict[str, Any]:
    """Returns where Go keeps the module, which is fetched."""
    done = subprocess.run(["go", "mod", "download", "-json", f"{module}@v{version}"], cwd=folder, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _built(name: str, wanted: Mapping[str, str], replaced: Mapping[str, str], programs: Sequence[str]) -> None:
    folder = BUILT / name
    if len(list((folder / "bin").glob("*"))) == len(programs):
        return
    folder.mkdir(parents=True, exist_ok=True)
    requires = [f"require {each} v{version}" for each, version in wanted.items()]
    replaces = [f"replace {each} => {each} v{version}" for each, version in replaced.items()]
    (folder / "go.mod").write_text("\n".join([f"module {name}", *requires, *replaces]) + "\n", encoding="utf-8")
    environment = os.environ | {"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-ldflags=-s -w", "-o", "bin/", *programs], cwd=folder, env=environment, check=True)


class Api:
    """The API server, as one user."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        self._port, self._token = port, token
        self._tls = ssl.create_default_context(cafile=str(certificate))

    def ask(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> dict[str, Any]:
        """Returns the answer. Raises KubernetesFailedError."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, "Accept": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"https://127.0.0.1:{self._port}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=30, context=self._tls) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise KubernetesFailedError(f"{method} {path}: {error.code}: {error.read().decode():.500}") from None
        except OSError as error:
            raise KubernetesFailedError(f"{method} {path}: {error!r}") from None

    def apply(self, document: Mapping[str, Any], namespace: str = "default") -> None:
        """Makes the object, or changes it to this."""
        group, kind, name = document["apiVersion"], document["kind"], document["metadata"]["name"]
        plural = {"NetworkPolicy": "networkpolicies"}.get(kind, f"{kind.lower()}s")
        of = "" if kind in ("CustomResourceDefinition", "Namespace", "APIService", "Node") else f"namespaces/{namespace}/"
        place = f"/{'apis' if '/' in group else 'api'}/{group}/{of}{plural}/{name}"
        self.ask("PATCH", f"{place}?fieldManager=bench&force=true", document, kind="application/apply-patch+yaml")


class Kubernetes:
    """The control plane and KEDA, while the context lasts. `folder`: for what they keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs = contextlib.ExitStack()
        self._etcd, self._peers, self._port, self._controllers, self._metrics, self._inside, self._health, self._own_metrics = free_ports(8)
        self._key, self._certificate = folder / "tls.key", folder / "tls.crt"

    def __enter__(self) -> Self:
        try:
            self._begin()
            self._begin_keda(self.config(ADMIN))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()  # what they have is thrown away
            process.wait()
        self._logs.close()

    def said(self, name: str, lines: int = 20) -> str:
        """The last lines of a process's log."""
        return "\n".join((self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def _start(self, name: str, program: str, flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> None:
        log = self._logs.enter_context((self._folder / f"{name}.log").open("wb"))
        command = [str(BUILT / program), *(f"--{flag}={value}" for flag, value in flags.items())]
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | dict(environment or {})))

    def _begin(self) -> None:
        folder, key, certificate, etcd = self._folder, self._key, self._certificate, f"http://127.0.0.1:{self._etcd}"
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", names]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (folder / "ca.crt").write_bytes(certificate.read_bytes())
        (folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        self._start(
            "etcd",
            "control-plane/bin/server",
            {
                "data-dir": folder / "etcd",
                "listen-client-urls": etcd,
                "advertise-client-urls": etcd,
                "listen-peer-urls": f"http://127.0.0.1:{self._peers}",
                "unsafe-no-fsync": True,
            },
        )
        self._start(
            "apiserver",
            "control-plane/bin/kube-apiserver",
            {
                "etcd-servers": etcd,
                "secure-port": self._port,
                "bind-address": "127.0.0.1",
                "advertise-address": "127.0.0.1",
                "endpoint-reconciler-type": "none",
                "tls-cert-file": certificate,
                "tls-private-key-file": key,
                "token-auth-file": folder / "tokens.csv",
                "authorization-mode": "RBAC",
                "client-ca-file": certificate,
                "service-account-key-file": key,
                "service-account-signing-key-file": key,
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-cluster-ip-range": "10.96.0.0/16",
                "requestheader-client-ca-file": certificate,
                "requestheader-allowed-names": "localhost",
                "requestheader-username-headers": "X-Remote-User",
                "requestheader-group-headers": "X-Remote-Group",
                "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                "proxy-client-cert-file": certificate,
                "proxy-client-key-file": key,
            },
        )
        self.api = Api(self._port, certificate, ADMIN)
        self._until("apiserver", "/api/v1/namespaces/default")
        self._start(
            "controllers",
            "control-plane/bin/kube-controller-manager",
            {
                "kubeconfig": self.config(ADMIN),
                "controllers": ",".join(CONTROLLERS),
                "leader-elect": "false",
                "service-account-private-key-file": key,
                "root-ca-file": certificate,
                "bind-address": "127.0.0.1",
                "secure-port": self._controllers,
                "cert-dir": folder / "controllers",
            },
        )

    def _begin_keda(self, config: Path) -> None:
        api, inside = self.api, f"localhost:{self._inside}"
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keda"}})
        sources = Path(_module(KEDA_MODULE, KEDA, BUILT / "keda")["Dir"])
        for file in sorted((sources / "config" / "crd" / "bases").glob("*.yaml")):
            api.apply(yaml.safe_load(file.read_text(encoding="utf-8")))
        environment = {"KUBECONFIG": str(config), "POD_NAMESPACE": "keda", "WATCH_NAMESPACE": "", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda"}
        self._start(
            "operator",
            "keda/bin/operator",
            {
                "leader-elect": "false",
                "enable-cert-rotation": "false",
                "cert-dir": self._folder,
                "metrics-bind-address": f"127.0.0.1:{self._own_metrics}",
                "health-probe-bind-address": f"127.0.0.1:{self._health}",
                "metrics-service-bind-address": inside,
            },
            environment,
        )
        self._start(
            "adapter",
            "keda/bin/adapter",
            {
                "secure-port": self._metrics,
                "lister-kubeconfig": config,
                "authentication-kubeconfig": config,
                "authorization-kubeconfig": config,
                "cert-dir": self._folder,
                "metrics-service-address": inside,
            },
            environment,
        )
        here = {"type": "ExternalName", "externalName": "localhost"}
        api.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"}, "spec": here}, "keda")
        asked = {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "metrics", "namespace": "keda", "port": self._metrics},
        }
        name = f"{asked['version']}.{asked['group']}"
        api.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": asked})
        self._until("adapter", "/apis/external.metrics.k8s.io/v1beta1")

    def _until(self, name: str, path: str) -> None:
        """Waits until the process answers. Raises KubernetesFailedError."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.api.ask("GET", path)
                return
            except KubernetesFailedError as error:
                if time.monotonic() > end_s or any(each.poll() is not None for each in self._processes):
                    raise KubernetesFailedError(f"{error}; {name} said:\n{self.said(name)}") from None
            time.sleep(0.5)

    def config(self, token: str) -> Path:
        """A file by which clients of Kubernetes find the API server, as the user of this token."""
        file = self._folder / f"{token[-16:]}.kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(self._certificate)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "here", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        }
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return file
