"""Prometheus and promtool for tests: from the path, or where `make prometheus` has put them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tools.brokers import free_ports

yaml: Any = pytest.importorskip("yaml", reason="needs pyyaml, of the extra dev")

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
_UNPACKED = ROOT / ".venv" / "prometheus" / "usr" / "bin"
MOST_START_S = 30.0
_SERIES = re.compile(r"_(bucket|sum|count|total|created)$")


def program(name: str) -> str:
    """Path of ``prometheus`` or ``promtool``. Skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(_UNPACKED))
    if found is None:
        pytest.skip(f"needs {name}: make prometheus, or apt-get install prometheus")
    return found


def promtool(*arguments: str, stdin: str = "") -> None:
    """Runs promtool, which must find no fault."""
    done = subprocess.run([program("promtool"), *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    """The alerts of deploy/prometheus/rules.yml."""
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def dashboard() -> list[dict[str, Any]]:
    """The panels of the dashboard."""
    document = json.loads((DEPLOY / "grafana" / "equipoise.json").read_text(encoding="utf-8"))
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries(panels: Iterable[Mapping[str, Any]]) -> list[str]:
    """The queries of panels, as Prometheus takes them: every group, rates over 20 s."""
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    return [text.replace("$__rate_interval", "20s").replace("$group", ".*") for text in texts]


def metrics_in(texts: Iterable[str]) -> set[str]:
    """Metrics that queries name; a histogram or counter by its own name, without ``_total``, ..."""
    return {family(name) for text in texts for name in re.findall(r"\bequipoise_\w+", text)}


def family(series: str) -> str:
    """The metric of a series."""
    return _SERIES.sub("", series)


def _sooner(text: str, faster: float) -> str:
    """The rules, with all their times divided."""

    def divided(found: re.Match[str]) -> str:
        seconds = int(found[2]) * {"s": 1, "m": 60, "h": 3_600}[found[3]] / faster
        return f"{found[1]}{max(2, round(seconds))}s"

    return re.sub(r"(\[|offset |for: )(\d+)([smh])\b", divided, text)


class Prometheus:
    """A Prometheus that scrapes `targets` (job -> ``host:port``) each second and evaluates the
    alerts each second, with the files of `deploy/prometheus`. Each alert is pending for a second
    instead of its own time. `faster`: instead, all times of the alerts are divided by it.
    """

    def __init__(self, folder: Path, targets: Mapping[str, list[str]], *, faster: float | None = None) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [{"job_name": job, "static_configs": [{"targets": places}]} for job, places in targets.items()]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        text = RULES.read_text(encoding="utf-8")
        text = re.sub(r"(?m)^( +(?:keep_firing_)?for:) \w+$", r"\1 1s", text) if faster is None else _sooner(text, faster)
        (folder / "rules.yml").write_text(text, encoding="utf-8")
        command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._log = (folder / "prometheus.log").open("ab")
        self._process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=self._log, stderr=self._log)

    def ask(self, path: str, **parameters: str) -> Any:
        """The field `data` of an answer of its API."""
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """Result of an instant query."""
        found: list[dict[str, Any]] = self.ask("query", query=text)["result"]
        return found

    def metrics(self) -> set[str]:
        """Metrics of equipoise that were scraped."""
        return {family(name) for name in self.ask("label/__name__/values") if name.startswith("equipoise_")}

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def __enter__(self) -> Self:
        end_s = time.monotonic() + MOST_START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                    return self
            except OSError:
                if time.monotonic() > end_s or self._process.poll() is not None:
                    self.__exit__(None, None, None)
                    raise
            time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
