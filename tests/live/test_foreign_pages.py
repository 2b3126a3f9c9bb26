"""A page of another site in a real browser, and a worker's port: what the page asks for writes and
reads nothing, also under a name that was made to mean this machine (DNS rebinding).
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web
from playwright.async_api import Page

from tests.live.console import browser
from tests.unit.equipoise.test_hostile_requests import QUESTION, serve

ATTACK = """
async ([worker, question]) => {
  const rounds = `${worker}/v1/groups/payments/rounds`;
  const outcome = async (asked) => {
    try { const answer = await asked(); return [answer.type, answer.status, await answer.text()]; } catch (error) { return ["error"]; }
  };
  const found = [];
  for (const media of ["text/plain", "application/x-www-form-urlencoded", "application/json"])
    for (const mode of ["no-cors", "cors"])
      found.push(await outcome(() => fetch(rounds, { method: "POST", mode, body: question, headers: { "Content-Type": media } })));
  for (const path of ["/groups", "/metrics", "/console/api/groups", "/"])
    found.push(await outcome(() => fetch(worker + path)));
  navigator.sendBeacon(rounds, question);
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: rounds, enctype: "text/plain", target: "_blank" });
  const field = document.createElement("input");
  Object.assign(field, { name: question.slice(0, -1) + ', "x": "', value: '"}' });
  form.append(field);
  document.body.append(form);
  form.submit();
  return found;
}
"""


async def _asked(page: Page, address: str) -> tuple[int, str]:
    answer = await page.goto(address)
    assert answer is not None
    return answer.status, await answer.text()


async def test_page_of_another_site_in_a_browser_writes_and_reads_nothing() -> None:
    async def empty(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>evil</title><body>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with serve("worker") as served, browser("--host-resolver-rules=MAP evil.example 127.0.0.1") as started:
            page = await (await started.new_context()).new_page()
            for host in ("evil.example", "127.0.0.1", "localhost"):  # another site, and other ports of this machine
                await page.goto(f"http://{host}:{port}/")
                found: list[Any] = await page.evaluate(ATTACK, [f"http://127.0.0.1:{served.port}", QUESTION.decode()])
                assert all(each[0] in ("error", "opaque") for each in found), found
                await page.wait_for_timeout(300)
            for path in ("/groups", "/metrics", "/console/api/groups", "/"):
                status, text = await _asked(page, f"http://evil.example:{served.port}{path}")
                assert (status, json.loads(text).keys()) == (403, {"problem"}), "a rebound name"
                assert (await _asked(page, f"http://127.0.0.1:{served.port}{path}"))[0] == 200
            assert served.asked() == [], "a round was asked"
    finally:
        await runner.cleanup()
