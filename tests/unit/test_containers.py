"""compose.yaml, the Dockerfile and the workflows agree with the code: options, ports, versions and
make targets exist.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from equipoise.worker.settings import WorkerSettings
from examples.orders.__main__ import main as orders

yaml: Any = pytest.importorskip("yaml", reason="needs pyyaml, of the extra dev")

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))
KEYS = {
    "build",
    "command",
    "depends_on",
    "entrypoint",
    "environment",
    "healthcheck",
    "image",
    "init",
    "ports",
    "profiles",
    "restart",
    "stop_grace_period",
    "volumes",
}
"""Keys of a service of the Compose Specification that compose.yaml may use."""


def test_services_use_known_keys_and_declared_volumes() -> None:
    assert {key for service in SERVICES.values() for key in service} <= KEYS
    used = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert {name for name in used if not name.startswith("./")} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_service_waits_for_services_that_can_reach_the_condition(name: str) -> None:
    waits = SERVICES[name].get("depends_on", {})
    if isinstance(waits, list):
        assert set(waits) <= set(SERVICES)
        return
    for other, wait in waits.items():
        check = SERVICES[other].get("healthcheck", {})
        by_image = "HEALTHCHECK" in DOCKERFILE and "build" in SERVICES[other] and not check.get("disable")
        if wait["condition"] == "service_healthy":
            assert check.get("test") or by_image, f"{other} has no healthcheck"
        else:
            assert wait["condition"] == "service_completed_successfully"
            assert "restart" not in SERVICES[other]


@pytest.mark.parametrize("name", [name for name, each in SERVICES.items() if "examples.orders" in each.get("entrypoint", ())])
def test_sample_application_takes_its_command(name: str) -> None:
    words: list[str] = SERVICES[name]["entrypoint"] + SERVICES[name]["command"]
    assert words[:3] == ["python", "-m", "examples.orders"]
    orders.commands[words[3]].make_context(words[3], words[4:])


def test_members_have_names_and_state_of_their_own() -> None:
    members = {name: service for name, service in SERVICES.items() if "count" in service.get("entrypoint", ())}
    assert len(members) == 3
    assert {name: service["command"] for name, service in members.items()} == {name: [name] for name in members}
    assert {name: service["volumes"] for name, service in members.items()} == {name: [f"{name}:/state"] for name in members}


def test_broker_is_of_the_version_that_live_tests_start_and_runs_without_zookeeper() -> None:
    broker = SERVICES["broker"]
    version = re.search(r"<kafka.version>([\d.]+)<", (ROOT / "tools" / "pom.xml").read_text(encoding="utf-8"))
    assert version is not None
    assert broker["image"] == f"apache/kafka:{version[1]}"
    assert broker["environment"]["KAFKA_PROCESS_ROLES"] == "broker,controller"
    listeners = set(re.findall(r"(\w+)://", broker["environment"]["KAFKA_LISTENERS"]))
    assert listeners == set(re.findall(r"(\w+):PLAINTEXT", broker["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]))
    address = SERVICES["worker"]["environment"]["EQUIPOISE_BOOTSTRAP"]
    assert f"INTERNAL://{address}," in broker["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_image_runs_the_worker_as_a_user_on_the_default_port() -> None:
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert lines[-2:] == ['ENTRYPOINT ["equipoise"]', 'CMD ["worker"]']
    assert "USER equipoise" in lines
    port = WorkerSettings(bootstrap="broker:9092").http_port
    assert f"EXPOSE {port}" in lines
    assert f"127.0.0.1:{port}/health" in DOCKERFILE
    assert WorkerSettings(bootstrap="broker:9092", log_format=re.findall(r"EQUIPOISE_LOG_FORMAT=(\w+)", DOCKERFILE)[-1]).log_format == "json"
    assert SERVICES["worker"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_image_gets_every_file_that_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    packages = {"assignors", "equipoise", "events", "replay", "statemachine"}
    assert packages | {"constraints.txt", "examples", "hatch_build.py", "pyproject.toml", "LICENSE", "README.md"} <= kept
    assert all((ROOT / name).exists() for name in kept)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_names_make_targets_and_files_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for job in workflow.get("jobs", {}).values() if isinstance(workflow, dict) else ():
        for run in [step["run"] for step in job["steps"] if "run" in step]:
            words = shlex.split(run)
            if words[0] == "make":
                assert set(words[1:]) <= targets
            for word in words:
                if word.startswith("tests/") or word == ".ci/run":
                    assert (ROOT / word).exists(), word


def test_workflow_tests_every_python_that_is_declared() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tested == ["3.11", "3.12", "3.13", "3.14"]
    assert declared
    assert set(declared) <= set(tested)
