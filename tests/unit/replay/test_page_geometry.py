"""The timeline page and picture in a real browser, at three widths and four sizes of a group:
nothing is wider than the window, no two texts overlap, and every member's row has its name.

Chromium lays all of them out in one run, each page in a frame of its own. Without Chromium these
tests are skipped.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from typing import Any

import pytest

from equipoise.events.tasks import TaskId
from equipoise.replay.importers.groups.dump import Dump
from equipoise.replay.importers.kafka_streams import StreamsSource, shipped_runs
from equipoise.replay.incident import history_of, incidents
from equipoise.replay.incident.page import render_incidents
from equipoise.replay.owners import Condition, Interval
from equipoise.replay.recorded_inputs import Window
from equipoise.replay.timelines import Lifeline, Round, Timeline, render_page, render_picture

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (420, 800, 1_400)
SIZES = ((3, 26), (50, 26), (3, 1_000), (50, 1_000))
"""Members and tasks."""
START_MS = 1_795_149_187_000
LENGTH_MS = 900_000

MEASURE = """
const measure = view => {
  const page = view.document, seen = element => {
    const box = element.getBoundingClientRect();
    const css = element.getAttribute("class") || element.localName;
    return { text: element.textContent, css, left: box.left, right: box.right, top: box.top, bottom: box.bottom };
  };
  const legend = page.getElementById("legend");
  return {
    window: view.innerWidth,
    scrolled: page.documentElement.scrollWidth,
    legend: legend ? [legend.clientHeight, legend.scrollHeight] : [0, 0],
    boxes: [...page.querySelectorAll("header, header *, #summary, #summary *, #stories *, #controls, #controls *, #chart, #chart > div")].map(seen),
    texts: [...(page.getElementById("chart") || page).querySelectorAll("svg text")].filter(text => text.textContent).map(seen),
    detail: [...page.querySelectorAll("#detail, #detail svg, #detail text, #detail table")].map(seen),
  };
};
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const row = frame.contentDocument.querySelector("svg .row");
    if (row) row.dispatchEvent(new frame.contentWindow.MouseEvent("click", { bubbles: true }));
    found[frame.id] = measure(frame.contentWindow);
  }
  document.body.replaceChildren();
  document.body.textContent = JSON.stringify(found);
});
"""


def timeline(members: int, tasks: int) -> Timeline:
    """Pods with long names; every task but each third loses its owner and gets another."""
    names = [f"orders-processor-7d9f8b6c5-x{number:02}" for number in range(members)]
    ids = [TaskId(number * 4 // tasks, number) for number in range(tasks)]
    middle_ms = START_MS + LENGTH_MS // 2

    def owned(task: TaskId, owner: int, condition: Condition, from_ms: int, to_ms: int) -> Interval:
        name = None if condition is Condition.NOBODY else names[owner % members]
        return Interval(task=task, member_id=name, condition=condition, from_ms=from_ms, to_ms=to_ms, offset=1, generation=1)

    return Timeline(
        group="orders-of-the-northern-warehouses",
        log_id="log",
        led_by="equipoise",
        assignor="high_availability 2",
        from_ms=START_MS,
        to_ms=START_MS + LENGTH_MS,
        facts=1_000,
        tasks=dict.fromkeys(ids, True),
        lifelines=tuple(
            Lifeline(
                member_id=name,
                incarnation=1,
                capacity=4,
                rack=None,
                joined_ms=START_MS + number,
                ended_ms=None if number % 2 else middle_ms,
                silent_ms=None if number % 2 else middle_ms - 40_000,
                how="" if number % 2 else "expired",
            )
            for number, name in enumerate(names)
        ),
        intervals=tuple(
            each
            for number, task in enumerate(ids)
            for each in (
                [owned(task, number, Condition.RUNNING, START_MS, START_MS + LENGTH_MS)]
                if number % 3 == 0
                else [
                    owned(task, number, Condition.RUNNING, START_MS, middle_ms - 40_000),
                    owned(task, number, Condition.SILENT, middle_ms - 40_000, middle_ms),
                    owned(task, number, Condition.NOBODY, middle_ms, middle_ms + 20_000),
                    owned(task, number + 1, Condition.STARTING, middle_ms + 20_000, middle_ms + 60_000),
                    owned(task, number + 1, Condition.RUNNING, middle_ms + 60_000, START_MS + LENGTH_MS),
                ]
            )
        ),
        copies=(),
        moves=(),
        rounds=tuple(
            Round(append_ms=START_MS + ms, offset=1, generation=1, cause="probing", moves=1, members=members) for ms in range(0, LENGTH_MS, 60_000)
        ),
        lags={(ids[0], names[0]): tuple((START_MS + ms, LENGTH_MS - ms) for ms in range(0, LENGTH_MS, 30_000))},
        imbalance=((START_MS, tasks),),
        verdicts=(),
        rejections=0,
        windows=tuple(
            Window(label=f"A{ms // 180_000}_a_change_with_a_long_name", start_ms=START_MS + ms, end_ms=START_MS + ms + 180_000, measured=None)
            for ms in range(0, LENGTH_MS, 180_000)
        ),
        first_divergence=None,
    )


def incident_page() -> str:
    """Of a recorded run, with a story of a hostile name."""
    history = history_of(Dump(StreamsSource(shipped_runs()["scale-out"])), "orders")
    found = incidents(history)
    return render_incidents(history, found, {each: ["</script><b>" + "x" * 400] for each in found})


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`page MEMBERS TASKS WIDTH` and `picture MEMBERS TASKS` -> what the browser measured."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    frames = []
    for members, tasks in SIZES:
        built = timeline(members, tasks)
        frames += [(f"page {members} {tasks} {width}", width, render_page(built)) for width in WIDTHS]
        frames.append((f"picture {members} {tasks}", 940, f"<!doctype html><body style='margin:0'>{render_picture(built)}"))
    frames += [(f"incident {width}", width, incident_page()) for width in WIDTHS]
    folder = tmp_path_factory.mktemp("layouts")
    style = "height:900px;border:0;width"
    written = "".join(f'<iframe id="{name}" style="{style}:{width}px" srcdoc="{html.escape(text)}"></iframe>' for name, width, text in frames)
    harness = folder / "harness.html"
    harness.write_text(f"<!doctype html><meta charset=utf-8><body><script>{MEASURE}</script>{written}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *options, harness.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(html.unescape(done.stdout[done.stdout.index("<body>") + 6 : done.stdout.index("</body>")]))
    assert len(found) == len(frames)
    return found


PAGES = [f"page {members} {tasks} {width}" for members, tasks in SIZES for width in WIDTHS]
INCIDENTS = [f"incident {width}" for width in WIDTHS]
PICTURES = [f"picture {members} {tasks}" for members, tasks in SIZES]


@pytest.mark.parametrize("name", PAGES + INCIDENTS)
def test_page_is_never_wider_than_the_window(layouts: dict[str, Any], name: str) -> None:
    layout = layouts[name]
    assert layout["window"] == int(name.rpartition(" ")[2])
    assert layout["scrolled"] <= layout["window"]
    outside = [each for each in layout["boxes"] + layout["texts"] + layout["detail"] if each["left"] < -0.5 or each["right"] > layout["window"] + 0.5]
    assert outside == []


@pytest.mark.parametrize("name", PAGES + INCIDENTS + PICTURES)
def test_drawing_texts_do_not_overlap(layouts: dict[str, Any], name: str) -> None:
    texts = sorted((each for each in layouts[name]["texts"] if each["right"] > each["left"]), key=lambda each: each["top"])
    assert len(texts) > 10
    overlapping = [
        (first["text"], second["text"])
        for number, first in enumerate(texts)
        for second in texts[number + 1 : number + 200]  # by their tops: those farther on begin far below
        if second["top"] < first["bottom"] - 1.5 and first["left"] < second["right"] - 1 and second["left"] < first["right"] - 1
    ]
    assert overlapping == []


@pytest.mark.parametrize("name", PAGES)
def test_member_rows_have_the_end_of_the_name(layouts: dict[str, Any], name: str) -> None:
    members = int(name.split()[1])
    names = [each["text"] for each in layouts[name]["texts"] if "life" in each["css"]]
    assert len(set(names)) == members, "names that are shortened stay distinct"
    assert all(each.endswith(f"x{number:02}") for number, each in enumerate(names))


@pytest.mark.parametrize("name", PAGES + INCIDENTS)
def test_legend_is_never_cut(layouts: dict[str, Any], name: str) -> None:
    shown, needed = layouts[name]["legend"]
    assert needed <= shown


@pytest.mark.parametrize("name", PICTURES)
def test_picture_texts_are_inside_it(layouts: dict[str, Any], name: str) -> None:
    texts = layouts[name]["texts"]
    assert [each for each in texts if each["left"] < 0 or each["right"] > 920] == []
