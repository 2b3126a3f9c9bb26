"""deploy/: the manifests of Kubernetes fit its schemas, the units fit systemd, and all of them and
compose.yaml name commands, options, ports, pages and files that exist.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs
import click
import jsonschema
import kubernetes_validate
import pytest

from equipoise.cli import main
from equipoise.events.settings import GroupSettings
from equipoise.hosting.live_settings import read_settings
from equipoise.replay.sizing.autoscaling import Following, policy_of
from equipoise.worker.settings import WorkerSettings
from examples.orders.__main__ import main as orders
from tests.prometheus import DEPLOY, promtool, yaml
from tests.unit.test_containers import COMPOSE, SERVICES
from tests.unit.test_docs import anchors

ROOT = Path(__file__).parents[2]
KUBERNETES = [DEPLOY / "kubernetes" / f"{name}.yaml" for name in ("member", "worker")]
MONITORS = DEPLOY / "kubernetes" / "pod-monitors.yaml"
KUSTOMIZATION = DEPLOY / "kubernetes" / "kustomization.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes: the oldest that is tried, and the newest one whose schema there is."""
WORKER_PORT = WorkerSettings(bootstrap="broker:9092").http_port


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def check_command(words: list[str]) -> None:
    """Every option of the command line is one."""
    if words[:3] == ["equipoise", "witness", "--"]:
        check_command(words[3:])
    elif words[0] == "equipoise":
        command = main.get_command(click.Context(main), words[1])
        assert command is not None, words[1]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words[2:] if word.startswith("--")} <= known
    else:
        assert words[:4] == ["python", "-m", "examples.orders", "count"]
        orders.commands["count"].make_context("count", words[4:])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_manifest_fits_the_schemas_of_kubernetes(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_schemas_of_kubernetes_find_what_is_wrong() -> None:
    (wrong, *_) = documents(KUBERNETES[0])
    wrong["spec"]["template"]["spec"]["terminationGrace"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_manifest_runs_a_command_with_probes_and_its_labels_agree(path: Path) -> None:
    workload, service, budget, policy = documents(path)
    labels = workload["spec"]["selector"]["matchLabels"]
    template = workload["spec"]["template"]
    assert labels.items() <= template["metadata"]["labels"].items()
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    (container,) = template["spec"]["containers"]
    assert {probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }
    (port,) = container["ports"]
    assert str(port["containerPort"]) == template["metadata"]["annotations"]["prometheus.io/port"]
    assert service["spec"]["ports"][0]["targetPort"] == policy["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    spread = template["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(each["labelSelector"]["matchLabels"] == labels for each in spread)
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in template["spec"].get("volumes", ())} | {
        each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())
    }
    if workload["kind"] == "Deployment":
        check_command(["equipoise", *container["args"]])
        assert port["containerPort"] == WORKER_PORT
    else:
        words = [*container["command"], *container["args"]]
        check_command(words)
        assert f"--http-port={port['containerPort']}" in words
        assert workload["spec"]["serviceName"] == service["metadata"]["name"]
        assert template["spec"]["terminationGracePeriodSeconds"] * 1_000 > GroupSettings().drain_timeout_ms


def test_worker_reads_the_settings_of_its_config_map() -> None:
    (generated,) = documents(KUSTOMIZATION)[0]["configMapGenerator"]
    (worker, *_) = documents(KUBERNETES[1])
    pod = worker["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if "configMap" in each)
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    (name,) = generated["files"]
    assert volume["configMap"]["name"] == generated["name"]
    assert f"--settings={mount['mountPath']}/{name}" in pod["containers"][0]["args"]
    settings = read_settings(WorkerSettings, {}, table="worker", file=KUSTOMIZATION.with_name(name), environ={})
    assert (settings.bootstrap, settings.http_port) == ("kafka:9092", pod["containers"][0]["ports"][0]["containerPort"])


def test_monitors_scrape_what_runs_under_the_jobs_that_alerts_expect() -> None:
    pods = {path.stem: documents(path)[0]["spec"]["template"] for path in KUBERNETES}
    jobs = set()
    for monitor, (name, pod) in zip(documents(MONITORS), sorted(pods.items(), reverse=True), strict=True):
        assert (monitor["apiVersion"], monitor["kind"], set(monitor["spec"])) == (
            "monitoring.coreos.com/v1",
            "PodMonitor",
            {"selector", "podMetricsEndpoints"},
        )
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (relabeling,) = endpoint["relabelings"]
        assert endpoint == {"port": pod["spec"]["containers"][0]["ports"][0]["name"], "path": "/metrics", "relabelings": [relabeling]}
        assert relabeling == {"targetLabel": "job", "replacement": f"equipoise-{name}"}
        jobs.add(relabeling["replacement"])
    assert jobs <= set(re.findall(r'job="([\w-]+)"', (DEPLOY / "prometheus" / "rules.yml").read_text(encoding="utf-8")))


def test_kustomize_takes_all_of_it(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    shutil.copytree(KUSTOMIZATION.parent, tmp_path / "all")
    copy = tmp_path / "all" / "kustomization.yaml"
    copy.write_text(copy.read_text(encoding="utf-8").replace("member.yaml]", "member.yaml, pod-monitors.yaml]"), encoding="utf-8")
    for folder in (KUSTOMIZATION.parent, copy.parent):
        made = list(yaml.safe_load_all(subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout))
        plain = [each for path in KUBERNETES for each in documents(path)]
        assert len(made) == len(plain) + 1 + (len(documents(MONITORS)) if folder == copy.parent else 0)
        for each in made:
            if each["kind"] != "PodMonitor":
                kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        (settings,) = (each for each in made if each["kind"] == "ConfigMap")
        (worker,) = (each for each in made if each["kind"] == "Deployment")
        assert {"name": settings["metadata"]["name"]} in [each.get("configMap") for each in worker["spec"]["template"]["spec"]["volumes"]]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_is_sound_and_its_command_exists(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(line.replace("%i", "1"))
    assert program in ("/opt/equipoise/bin/equipoise", "/opt/orders/bin/python")
    check_command([Path(program).name, *words])
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze: make systemd, or apt-get install systemd")
    for each in UNITS:
        sound = re.sub(r"/opt/\w+/bin/\w+", sys.executable, each.read_text(encoding="utf-8"))
        (tmp_path / each.name).write_text(sound.replace("User=orders", "User=root"), encoding="utf-8")
    name = path.name.replace("@.", "@1.")
    if name != path.name:
        (tmp_path / name).symlink_to(tmp_path / path.name)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    )
    of_these = [line for line in (done.stderr + done.stdout).splitlines() if str(tmp_path) in line or any(each.name in line for each in UNITS)]
    assert of_these == []


def test_systemd_finds_what_is_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze: make systemd, or apt-get install systemd")
    (tmp_path / "wrong.service").write_text(f"[Service]\nExecStart={sys.executable}\nRestarts=always\n", encoding="utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", str(tmp_path / "wrong.service")], capture_output=True, text=True, check=False)
    assert "Restarts" in done.stderr


def test_compose_wires_prometheus_and_grafana() -> None:
    prometheus, grafana = SERVICES["prometheus"], SERVICES["grafana"]
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    for service in (prometheus, grafana):
        for source, _, _ in (volume.partition(":") for volume in service["volumes"]):
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), source
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets["equipoise-worker"] == [f"worker:{WORKER_PORT}"]
    members = {name: service["entrypoint"] for name, service in SERVICES.items() if "count" in service.get("entrypoint", ())}
    assert targets["equipoise-member"] == [f"{name}:8080" for name in members]
    assert all("--http-port=8080" in words and "--http-host=0.0.0.0" in words for words in members.values())
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "dashboards" / "equipoise.yml").read_text(encoding="utf-8"))["providers"]
    mounted = [volume.split(":")[1] for volume in grafana["volumes"]]
    assert f"{provider['options']['path']}/equipoise.json" in mounted
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted


KEDA = sorted((DEPLOY / "keda").glob("*.yaml"))
SCALED_OBJECT = json.loads((ROOT / "tests" / "data" / "keda_scaled_object.json").read_text(encoding="utf-8"))
WORKERS = "equipoise-workers"
"""The service that is all workers."""


@pytest.mark.parametrize("path", KEDA, ids=lambda path: path.name)
def test_manifest_for_autoscalers_fits_the_schemas_of_kubernetes_and_keda(path: Path) -> None:
    for document in documents(path):
        if document["kind"] == "ScaledObject":
            jsonschema.validate(document, SCALED_OBJECT)
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)


def test_schema_of_keda_finds_what_is_wrong() -> None:
    (document,) = documents(DEPLOY / "keda" / "scaled-object.yaml")
    document["spec"]["minReplicas"] = 2
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        jsonschema.validate(document, SCALED_OBJECT)


def test_autoscalers_ask_for_what_a_worker_answers_within_their_limits() -> None:
    (member, *_) = documents(DEPLOY / "kubernetes" / "member.yaml")
    (document,) = documents(DEPLOY / "keda" / "scaled-object.yaml")
    spec, metadata = document["spec"], document["spec"]["triggers"][0]["metadata"]
    assert spec["scaleTargetRef"]["name"] == member["metadata"]["name"]
    url = urlsplit(metadata["url"])
    assert (url.netloc, url.path) == (f"{WORKERS}:{WORKER_PORT}", "/groups/orders/size")
    assert (metadata["valueLocation"], metadata["targetValue"]) == ("members", "1")
    assert "members" in {field.name for field in attrs.fields(Following)}
    policy = policy_of(dict(parse_qsl(url.query)))
    assert (policy.least, policy.most) == (spec["minReplicaCount"], spec["maxReplicaCount"])
    (plain,) = documents(DEPLOY / "keda" / "hpa.yaml")
    assert (plain["spec"]["minReplicas"], plain["spec"]["maxReplicas"]) == (policy.least, policy.most)
    service, network = documents(DEPLOY / "keda" / "workers.yaml")
    (worker, *_) = documents(DEPLOY / "kubernetes" / "worker.yaml")
    labels = worker["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == network["spec"]["podSelector"]["matchLabels"] == labels
    assert service["metadata"]["name"] == WORKERS
    assert service["spec"]["clusterIP"] == "None"
    assert {each["port"] for each in service["spec"]["ports"]} == {WORKER_PORT}


@pytest.mark.parametrize("path", [*KUBERNETES, MONITORS, KUSTOMIZATION, *KEDA, *UNITS], ids=lambda path: path.name)
def test_pages_that_a_manifest_names_exist(path: Path) -> None:
    named = re.findall(r"(docs/[a-z-]+\.md)#([a-z0-9-]+)", path.read_text(encoding="utf-8"))
    assert named
    assert [f"{page}#{fragment}" for page, fragment in named if fragment not in anchors(ROOT / page)] == []
