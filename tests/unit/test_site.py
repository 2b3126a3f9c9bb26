"""The documentation as a site: `make site` builds it without a warning, everything in it is there
without a network, and its pages fit a phone.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import equipoise
from equipoise import replay, streams, testing
from equipoise.replay import spark

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (390, 1_400)
LAID_OUT = ("index", "tutorial", "operations", "deploy", "restarts", "logs", "architecture", "commands", "api", "protocol", "states")
FOUND_FIRST = {"kill": "docs/restarts.html", "lead": "docs/seat.html", "backup": "docs/logs.html", "alert": "docs/operations.html"}
"""What a reader searches for -> the page of the task, which the search gives first."""
MEASURE = """
addEventListener("load", () => setTimeout(() => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const view = frame.contentWindow, page = view.document;
    found[frame.id] = {
      window: view.innerWidth, scrolled: page.documentElement.scrollWidth, results: page.querySelectorAll("#search-results li").length,
      background: view.getComputedStyle(page.body).backgroundColor,
      first: page.querySelector("#search-results li a")?.getAttribute("href") ?? "",
      cut: [...page.querySelectorAll("article pre")].slice(0, 1).some(each => each.scrollWidth > each.clientWidth),
    };
  }
  document.body.replaceChildren();
  document.body.textContent = JSON.stringify(found);
}, 3000));
"""


def on_the_site(test: Callable[..., None]) -> Callable[..., None]:
    """In one process, so that it is built once."""
    return pytest.mark.docs(pytest.mark.xdist_group("site")(test))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make site` builds; a warning is an error there."""
    to = tmp_path_factory.mktemp("site") / "built"
    done = subprocess.run(["make", "site", f"SITE={to}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return to


@pytest.mark.slow
@on_the_site
def test_site_has_every_page_and_each_is_in_the_navigation(site: Path) -> None:
    pages = {str(path.relative_to(ROOT).with_suffix(".html")) for path in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]}
    start = (site / "docs" / "index.html").read_text(encoding="utf-8")
    linked = {os.path.normpath(f"docs/{link}") for link in re.findall(r'class="reference internal" href="([^"#]+)', start)}
    assert pages - linked - {"docs/index.html"} == set()
    assert all((site / page).exists() for page in pages)
    assert "url=docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


@on_the_site
def test_site_loads_nothing_from_a_network(site: Path) -> None:
    away = r"[\"']?(?:https?:)?//"
    loaded = re.compile(rf"<(?:script|img|iframe|source)\b[^>]*\bsrc={away}|<link\b[^>]*\bhref={away}|@import|url\(\s*{away}")
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(files) > 60
    assert {str(path.relative_to(site)): found for path in files if (found := loaded.findall(path.read_text(encoding="utf-8")))} == {}


@on_the_site
def test_every_link_of_the_site_leads_to_a_place_that_is_there(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    places = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    dead, seen = [], 0
    for path, text in texts.items():
        for link in set(re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)):
            if re.match(r"[a-z]+:", link):
                continue
            seen += 1
            file, _, fragment = html.unescape(link).partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            if not target.exists() or (fragment and target in places and unquote(fragment) not in places[target]):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert seen > 2_000
    assert dead == []


@on_the_site
def test_pages_fit_a_phone_and_search_answers_offline(site: Path, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    frames = [(f"{page} {width}", f"docs/{page}.html", width) for page in LAID_OUT for width in WIDTHS]
    frames += [(f"search {word}", f"search.html?q={word}", 1_400) for word in ("standby", *FOUND_FIRST)]
    written = "".join(f'<iframe id="{name}" style="height:900px;border:0;width:{width}px" src="{file}"></iframe>' for name, file, width in frames)
    harness = site / "harness.html"
    harness.write_text(f"<!doctype html><meta charset=utf-8><body><script>{MEASURE}</script>{written}", encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    done = subprocess.run([CHROMIUM, *options, harness.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    harness.unlink()
    found: dict[str, Any] = json.loads(html.unescape(done.stdout[done.stdout.index("<body>") + 6 : done.stdout.index("</body>")]))
    assert {name: each["scrolled"] for name, each in found.items() if each["scrolled"] > each["window"]} == {}
    assert len(found) == len(frames)
    assert found["search standby"]["results"] > 5
    assert {word: found[f"search {word}"]["first"].partition("#")[0] for word in FOUND_FIRST} == FOUND_FIRST
    assert [f"{page} 1400" for page in ("index", "operations") if found[f"{page} 1400"]["cut"]] == [], "the comments of the first block are cut"


def test_library_pages_have_every_public_name_once() -> None:
    shown = [name for page in DOCS.glob("api*.md") for name in re.findall(r"^\.\. auto\w+:: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    public = [f"{package.__name__}.{name}" for package in (equipoise, replay, spark, streams, testing) for name in package.__all__]
    assert sorted(shown) == sorted(public)


def test_release_publishes_the_site_that_make_builds() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "make site" in workflow
    assert "path: out/site" in workflow


@pytest.mark.parametrize("name", ["streams-assignor", "broker-assignor"])
def test_release_publishes_the_assignors_in_java_under_the_same_version(name: str) -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert f"mvn -q -B -f java/{name}/pom.xml package" in workflow
    assert 'gh release create "$GITHUB_REF_NAME" */target/*-assignor-*.jar' in workflow
    pom = (ROOT / "java" / name / "pom.xml").read_text(encoding="utf-8")
    found = re.search(r"<version>(.*?)</version>", pom)
    assert found is not None
    assert found[1] == tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
