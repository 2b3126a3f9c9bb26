// The live console: what the worker's groups do now. Reads documents and server-sent events; changes nothing.
import { clockOf, count, element, make, number, scrolled, span, visible } from "./basics.js";
import { Chart } from "./chart.js";
import { taskDetail } from "./detail.js";
import { whatIf } from "./whatif.js";

const byId = id => document.getElementById(id);
const SLOW_MS = 2000; // what only grows older is fetched again so often
const MOST_SAID = 200;
const PHASES = { halted: "halted", unconfigured: "no configuration", empty: "no members", gathering: "gathering", leading: "led", shadowing: "watched" };
const KINDS = { starting: "starts", revoking: "is given up", warming: "warms up", waiting: "waits for a slot", standby: "standby restores" };
const STATES = { unrevoked: "gives tasks up", unreleased: "waits for tasks" };
let view = null, events = null, timer = 0;

// ------------------------------------------------------------------------------------------------ places and fetching

const to = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
const place = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
const url = (path, query) => `${path}?${new URLSearchParams(query)}`;
export const ask = async (path, query = {}) => {
  const answer = await fetch(url(path, query), { cache: "no-store" });
  if (answer.status === 401) location.reload();
  const document = await answer.json();
  if (!answer.ok || document.problem) throw new Error(document.problem || `the worker answers ${answer.status}`);
  return { document, everyMs: Number(answer.headers.get("X-Made-Every-Ms")) || 500 };
};
const live = (text, state) => { const node = byId("live"); if (node.textContent !== text) { node.textContent = text; node.className = state; } };

// ------------------------------------------------------------------------------------------------ parts of pages

const link = (parent, text, href, className) => { const node = element("a", parent, visible(text), className); node.href = href; return node; };
const swatch = (parent, colour) => { const svg = make("svg", { width: 12, height: 12, class: "swatch", "aria-hidden": true }); make("rect", { width: 12, height: 12, rx: 3, fill: colour }, svg); parent.prepend(svg); };
const card = (parent, title, small) => { const node = element("section", parent, undefined, "card"), head = element("h2", node, title); if (small !== undefined) element("small", head, small); return node; };
const table = (parent, columns, className) => {
  const node = element("table", parent, undefined, className), head = element("tr", element("thead", node));
  for (const name of columns) element("th", head, name.replace("*", ""), name.endsWith("*") ? "text" : "").scope = "col";
  return element("tbody", node);
};
const facts = (parent, pairs) => { const list = element("dl", parent, undefined, "facts"); for (const [name, value] of pairs) { const pair = element("div", list); element("dt", pair, name); element("dd", pair, visible(value)); } return list; };
const progress = (parent, part) => { // a bar without inline style, which the page's policy forbids
  const svg = make("svg", { width: 96, height: 9, class: "bar", role: "img", "aria-label": `${Math.round(part * 100)} %` });
  make("rect", { width: 96, height: 9, rx: 4.5, class: "of" }, svg);
  make("rect", { width: Math.max(2, 96 * Math.min(1, Math.max(0, part))).toFixed(1), height: 9, rx: 4.5, class: "done" }, svg);
  parent.appendChild(svg);
};
const troubleList = (parent, troubles, group) => {
  const list = element("ul", parent, undefined, "troubles");
  if (!troubles.length) element("li", list, "nothing is wrong", "l0");
  for (const each of troubles) {
    const item = element("li", list, undefined, `l${each.level}`);
    if (group !== undefined && each.task) link(item, each.text, to("g", group, "t", each.task));
    else if (group !== undefined && each.member) link(item, each.text, to("g", group, "m", each.member));
    else item.append(visible(each.text));
  }
};
const dayOf = ms => new Date(ms).toISOString().slice(0, 19).replace("T", " ");
const SIDES = { inside: "✓", above: "▲", below: "▼" };
const changesTable = (holder, changes, group) => { // what was expected of a change beside what it cost
  if (!changes.length) { element("p", holder, "None as far as this worker remembers.", "key"); return; }
  const rows = table(holder, ["when*", ...(group === undefined ? ["group*"] : []), "change*", "verdict*", "expected (95 %) and measured*"], "changes");
  for (const each of changes) {
    const row = element("tr", rows), time = element("time", element("td", row, undefined, "text"), dayOf(each.ms));
    time.dateTime = new Date(each.ms).toISOString();
    if (group === undefined) link(element("td", row, undefined, "text"), each.group, to("g", each.group), "name");
    const what = element("td", row, visible(each.what, 300), "text");
    const about = [each.change, each.why && `because ${each.why}`, each.or_undo && "or undone"].filter(Boolean).join(", ");
    if (about) element("div", what, visible(about, 300), "key");
    element("span", element("td", row, undefined, "text"), visible(each.verdict, 200), `badge b${each.level}`);
    const costs = element("div", element("td", row, undefined, "text"), undefined, "costs");
    for (const cost of each.costs) {
      element("span", costs, cost.name, "key");
      element("span", costs, cost.expected || "-");
      const was = element("span", costs, cost.was || "not yet", cost.side);
      if (cost.side) was.append(` ${SIDES[cost.side]} ${cost.side}`);
    }
  }
};
// Draws into `holder` what `draw` makes of `value`, if that has changed. What had the focus keeps it.
const redraw = (holder, value, draw) => {
  const text = JSON.stringify(value);
  if (holder.drawn === text) return;
  holder.drawn = text;
  const focused = holder.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const scrolled = holder.scrollTop;
  holder.replaceChildren();
  draw(holder, value);
  holder.scrollTop = scrolled;
  if (focused) [...holder.querySelectorAll("a")].find(node => node.getAttribute("href") === focused)?.focus({ preventScroll: true });
};

class Said { // the sentences of the worker's log, newest first
  constructor(parent, group, only = () => true) {
    this.group = group; this.only = only; this.last = 0;
    const section = card(parent, "Decisions", "as they are made");
    this.about = section.querySelector("small");
    this.list = element("ol", section, undefined, "said");
    this.list.tabIndex = 0; this.list.setAttribute("aria-label", "decisions, newest first");
  }
  async load() {
    const { document } = await ask("api/said", this.group === undefined ? {} : { group: this.group });
    if (document.last < this.last) { this.last = 0; this.list.replaceChildren(); } // another worker's numbers
    if (document.since_ms !== undefined) this.about.textContent = `as they are made, all since ${clockOf(document.since_ms)}`;
    for (const each of document.said) this.add(each, false);
    if (!this.list.firstChild) element("li", this.list, "none as far as this worker remembers", "none");
  }
  add(each, fresh) {
    if (each.id <= this.last || !this.only(each)) return;
    this.last = each.id;
    this.list.querySelector(".none")?.remove();
    const item = element("li", null, undefined, fresh ? "new" : ""), time = element("time", item, clockOf(each.ms));
    time.dateTime = new Date(each.ms).toISOString(); time.title = `fact at offset ${each.offset}`;
    const text = element("div", item, undefined, each.level >= 30 ? "loud" : "");
    if (this.group === undefined) link(text, each.group, to("g", each.group), "where").append(" ");
    element("span", text, visible(each.text, 600), "text");
    if (each.tasks && each.tasks.length && each.tasks.length <= 6) for (const task of each.tasks) { text.append(" "); link(text, task, to("g", each.group, "t", task)); }
    this.list.prepend(item);
    while (this.list.childElementCount > MOST_SAID) this.list.lastChild.remove();
  }
}

// ------------------------------------------------------------------------------------------------ all groups

class GroupsPage {
  constructor(main) {
    this.group = undefined;
    element("h1", main, "Groups");
    this.sub = element("p", main, "", "sub");
    const split = element("div", main, undefined, "split");
    const left = element("div", split);
    this.list = scrolled(element("section", left, undefined, "card"), "groups");
    this.changes = scrolled(card(left, "Changes", "what each was expected to cost, and did"), "changes");
    this.said = new Said(element("div", split), undefined);
  }
  async refresh() {
    const { document, everyMs } = await ask("api/groups");
    const { groups } = document, wrong = groups.filter(each => each.level >= 2).length;
    const sub = `${count(groups.length, "group")} of log ${document.log_id}, ${wrong ? `${number(wrong)} in trouble` : "none in trouble"}${document.unready ? `; this worker is not ready: ${document.unready}` : ""}`;
    if (this.sub.textContent !== visible(sub)) this.sub.textContent = visible(sub);
    redraw(this.list, groups.map(each => ({ ...each, offset: 0, append_ms: 0 })), holder => {
      if (!groups.length) { element("p", holder, "This worker leads no group yet."); return; }
      const rows = table(holder, ["group*", "state*", "members", "tasks", "moving", "what is wrong*"], "list");
      for (const each of groups) {
        const row = element("tr", rows);
        link(element("td", row, undefined, "text"), each.group, to("g", each.group), "name");
        element("span", element("td", row, undefined, "text"), each.level >= 2 ? `${PHASES[each.phase]}, ${each.level > 2 ? "alarm" : "warning"}` : PHASES[each.phase], `badge b${each.level}`);
        for (const value of [each.members, each.tasks, each.moving]) element("td", row, number(value));
        troubleList(element("td", row, undefined, "text"), each.troubles.slice(0, 3), each.group);
      }
    });
    redraw(this.changes, document.changes, (holder, value) => changesTable(holder, value));
    return everyMs;
  }
}

// ------------------------------------------------------------------------------------------------ one group

const waitsTable = (holder, waits, group) => {
  if (!waits.length) { element("p", holder, "Nothing waits: every task runs where it should.", "key"); return; }
  const rows = table(holder, ["task*", "what*", "progress*", "behind", "expected", "why*"], "list");
  for (const each of waits.slice(0, 100)) {
    const row = element("tr", rows);
    link(element("td", row, undefined, "text"), each.task, to("g", group, "t", each.task));
    const way = each.source && each.destination ? `${visible(each.source)} → ${visible(each.destination)}` : visible(each.destination || each.source || "nobody");
    element("td", row, `${KINDS[each.kind]}: ${way}`, "text name");
    const bar = element("td", row, undefined, "text");
    if (each.first_lag_records && each.lag_records !== null) progress(bar, 1 - each.lag_records / each.first_lag_records);
    element("td", row, number(each.lag_records));
    const left = each.expected_ms !== null ? `about ${span(each.expected_ms)}` : each.kind === "revoking" && each.left_ms !== null ? `within ${span(each.left_ms)}` : "";
    element("td", row, left);
    element("td", row, visible(each.why), "text");
  }
  if (waits.length > 100) element("p", holder, `and ${number(waits.length - 100)} more`, "key");
};

const cell = (holder, group, task, condition, movement, member, colour, kind, small) => { // one task on one member
  const text = { active: condition === "running" ? "runs" : condition === "parked" ? "parked" : condition, warmup: "warm-up", standby: "standby" }[kind];
  const node = element("a", holder, undefined, "cell");
  node.href = to("g", group, "t", task);
  const about = `${task}: ${text} on ${visible(member)}${movement ? `, ${movement}` : ""}`;
  node.title = about; node.setAttribute("aria-label", about);
  const wide = small ? 13 : 10, svg = make("svg", { width: wide, height: wide, "aria-hidden": true }, node);
  if (kind === "standby") make("rect", { x: 0, y: wide / 2 - 1, width: wide, height: 2, fill: colour }, svg);
  else if (kind === "warmup") for (const at of [0, 4, 8, 12]) make("path", { d: `M${at - 4} ${wide}l${wide} ${-wide}`, stroke: colour, "stroke-width": 2 }, svg);
  else make("rect", { width: wide, height: wide, rx: 2, fill: condition === "running" || condition === "parked" ? colour : "none", stroke: colour, "stroke-width": 2 }, svg);
  if (kind === "active" && condition === "parked") make("path", { d: `M1 1L${wide - 1} ${wide - 1}M${wide - 1} 1L1 ${wide - 1}`, class: "parkedmark", stroke: "var(--card)", "stroke-width": 2 }, svg);
  if (kind === "active" && movement === "revoking") make("rect", { width: wide, height: 3, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": .8 }, svg);
  if (!small) node.append(` ${task}`); else node.tabIndex = -1;
};

const membersGrid = (holder, now) => {
  const small = now.task_rows.length > 150, rows = table(holder, ["member*", "state*", "active", "copies", "tasks*"], "grid");
  const mine = now.member_rows.map(() => []);
  const nobody = [];
  for (const [task, owner, condition, , movement] of now.task_rows) (owner < 0 ? nobody : mine[owner]).push([task, condition, movement, "active"]);
  for (const [task, member, warm] of now.copies) mine[member].push([task, "", "", warm ? "warmup" : "standby"]);
  const line = (member, tasks) => {
    const row = element("tr", rows), who = element("td", row, undefined, "text who");
    if (member) { swatch(link(who, member.member, to("g", now.group, "m", member.member), "name"), member.colour); } else element("b", who, "nobody");
    element("td", row, member ? `${STATES[member.state] || member.state}${member.drain ? `, ${member.drain}` : ""}` : "", "text");
    element("td", row, number(member ? member.active : nobody.length), "numbers");
    element("td", row, member ? number(member.standby + member.warmup) : "", "numbers");
    const cells = element("div", element("td", row, undefined, "text"), undefined, small ? "cells small" : "cells");
    tasks.forEach(([task, condition, movement, kind]) => cell(cells, now.group, task, condition, movement, member ? member.member : "nobody", member ? member.colour : "var(--alarm)", kind, small));
    if (small && cells.firstChild) {
      cells.firstChild.tabIndex = 0;
      cells.addEventListener("keydown", event => { // one stop for the Tab key; arrows go on
        const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key], next = step && document.activeElement[step];
        if (next) { event.preventDefault(); document.activeElement.tabIndex = -1; next.tabIndex = 0; next.focus(); }
      });
    }
  };
  if (nobody.length) line(null, nobody);
  now.member_rows.forEach((member, index) => line(member, mine[index]));
  if (now.tasks_left_out) element("p", holder, `${number(now.tasks_left_out)} tasks more are not shown.`, "key");
};

class GroupPage {
  constructor(main, group, member) {
    this.group = group; this.member = member; this.versions = "";
    element("h1", main, visible(member === undefined ? group : member));
    this.sub = element("p", main, "", "sub");
    const split = element("div", main, undefined, "split"), left = element("div", split), right = element("div", split);
    this.troubles = element("div", card(left, "What is wrong"));
    if (member === undefined) this.waits = scrolled(card(left, "What waits for what", "expected by the restore rates that members measured"), "what waits", "scrolling");
    else this.facts = element("div", card(left, "The member"));
    this.picture = element("section", left); this.picture.id = "picture"; this.picture.setAttribute("aria-label", "who owned what when");
    this.chart = new Chart(this.picture, { onTask: t => { location.hash = to("g", group, "t", this.chart.data.tasks[t]); } });
    if (member !== undefined) this.chart.chosen = member;
    this.grid = scrolled(card(left, member === undefined ? "Members and their tasks" : "Its tasks", "click a task for why it is there"), "tasks by member");
    if (member === undefined) this.changes = scrolled(card(left, "Changes", "what each was expected to cost, and did"), "changes");
    this.said = new Said(right, group, member === undefined ? undefined : each => [each.member, each.source, each.destination].includes(member));
    if (member === undefined) this.ask = whatIf(card(right, "What if", "by the same code that decides, on the state now; changes nothing"), group, ask);
  }
  async refresh() {
    const [{ document: now, everyMs }, { document: timeline, everyMs: timelineMs, problem }] = await Promise.all([
      ask("api/group", { group: this.group }), ask("api/timeline", { group: this.group }).catch(error => ({ document: null, everyMs: 0, problem: error.message }))]);
    this.now = now;
    const own = this.member === undefined ? null : now.member_rows.find(each => each.member === this.member);
    const verdict = now.verdict ? `, ${now.verdict.replaceAll("_", " ")}${now.planned ? ` (${count(now.planned, "movement")} planned)` : ""}` : "";
    this.sub.textContent = own === undefined ? "is not a member now" : visible(`${PHASES[now.phase]} by ${now.led_by || "nobody"} (${now.assignor || "no assignor"}), ${count(now.members, "member")}, ${count(now.tasks, "task")}, generation ${now.generation}${verdict}; offset ${now.offset}`);
    redraw(this.troubles, this.member === undefined ? now.troubles : now.troubles.filter(each => each.member === this.member), (holder, value) => troubleList(holder, value, now.group));
    if (this.waits) redraw(this.waits, now.waits, (holder, value) => waitsTable(holder, value, now.group));
    if (this.changes) redraw(this.changes, now.changes, (holder, value) => changesTable(holder, value, now.group));
    if (own) this.about(own, now);
    const shown = own ? { ...now, member_rows: [own], task_rows: now.task_rows.filter(row => row[1] === now.member_rows.indexOf(own)).map(row => [row[0], 0, ...row.slice(2)]), copies: now.copies.filter(row => row[1] === now.member_rows.indexOf(own)).map(row => [row[0], 0, ...row.slice(2)]), tasks_left_out: 0 } : now;
    redraw(this.grid, [shown.task_rows, shown.copies.map(row => row.slice(0, 3)), shown.member_rows.map(each => [each.member, each.state, each.drain, each.colour, each.active, each.warmup, each.standby])], holder => membersGrid(holder, shown));
    const version = timeline ? `${timeline.from} ${timeline.to}` : problem;
    if (version !== this.versions) {
      this.versions = version;
      if (timeline) this.chart.set(timeline); else { this.picture.replaceChildren(); element("p", this.picture, visible(problem), "key"); }
    }
    if (this.ask) this.ask(now);
    return Math.max(everyMs, timelineMs);
  }
  about(own, now) {
    redraw(this.facts, own, holder => {
      const rate = own.restore_records_per_s ? `${number(own.restore_records_per_s)} records/s` : "not measured";
      facts(holder, [["state", (STATES[own.state] || own.state) + (own.drain ? `, ${own.drain}` : "")], ["active", number(own.active)], ["standbys", number(own.standby)], ["warm-ups", number(own.warmup)],
        ["to give up", number(own.revoking)], ["restores", rate], ["caught up at a lag of", number(own.acceptable_lag_records)], ["silent", `${span(own.silent_ms)} of ${span(own.session_timeout_ms)}`],
        ["incarnation", String(own.incarnation)], ["capacity", number(own.capacity)], ["epoch applied", `${own.applied_epoch} of ${own.assignment_epoch}`], ["crashes", number(own.crashes)],
        ["rack", own.rack || "none"], ...Object.entries(own.tags).map(([name, value]) => [visible(name, 30), value]), ...(own.advertised ? [["reached at", own.advertised]] : [])]);
      const mine = now.waits.filter(each => each.source === own.member || each.destination === own.member);
      if (mine.length) waitsTable(holder, mine, now.group);
    });
  }
}

// ------------------------------------------------------------------------------------------------ one task, explained

const explain = async (group, task) => {
  const body = byId("detail-body");
  byId("detail").hidden = false;
  byId("detail-title").textContent = `task ${visible(task)} of ${visible(group)}`;
  body.replaceChildren();
  element("p", body, "asking the assignor…", "above");
  let found = null, problem = "";
  try { found = (await ask("api/explain", { group, task })).document; } catch (error) { problem = error.message; }
  if (place()[3] !== task) return; // another one was chosen meanwhile
  body.replaceChildren();
  if (problem) { element("p", body, visible(problem), "problem above"); return; }
  const sentences = (title, texts) => { if (!texts.length) return; const part = element("div", body); element("h3", part, title); const list = element("ul", part, undefined, "sentences"); for (const text of texts) element("li", list, visible(text, 1000)); };
  sentences("Why it is there", found.why_here);
  sentences("What is next", found.what_next);
  const part = scrolled(body, "candidates");
  element("h3", part, found.candidates_at_ms === null ? "Who could have it now" : `Who could have it at ${clockOf(found.candidates_at_ms)}`);
  const rows = table(part, ["member*", "lag", "caught up*", "active tasks", "obstacle*"]);
  for (const each of found.candidates.slice(0, 40)) {
    const row = element("tr", rows);
    element("td", row, visible(each.member_id), "text name");
    element("td", row, each.lag === null ? "no copy" : each.lag === "active" ? "runs it" : typeof each.lag === "number" ? number(each.lag) : each.lag);
    element("td", row, each.caught_up ? "yes" : "no", "text");
    element("td", row, number(each.active_tasks));
    element("td", row, visible(each.obstacle || ""), "text");
  }
  const chart = view && view.chart, t = chart && chart.data ? chart.data.tasks.indexOf(task) : -1;
  if (t >= 0) {
    const history = element("div", body, undefined, "above"), interval = (chart.intervals.get(t) || []).slice(-1)[0] || null;
    element("h3", history, "What happened to it lately");
    taskDetail(chart, t, interval, element("div", history, undefined, "what"));
    chart.mark(interval ? interval[5] : null);
  }
};
const closeDetail = () => {
  byId("detail").hidden = true;
  if (view && view.chart && view.chart.data) view.chart.mark(null);
  const [, group, kind] = place();
  if (kind === "t") location.hash = view && view.member !== undefined ? to("g", group, "m", view.member) : to("g", group);
};

// ------------------------------------------------------------------------------------------------ the page as a whole

const plan = ms => { clearTimeout(timer); timer = setTimeout(refresh, ms); };
let refreshing = false, again = false;
const refresh = async () => {
  if (refreshing) { again = true; return; }
  if (document.hidden) { plan(SLOW_MS); return; }
  refreshing = true; again = false;
  const shown = view;
  let everyMs = 1000;
  try {
    everyMs = await shown.refresh();
    live("live", "on");
  } catch (error) {
    live(`not live: ${error.message}`.slice(0, 120), "off");
    if (shown === view && shown.sub && !shown.now) shown.sub.textContent = visible(error.message);
  }
  refreshing = false;
  if (shown !== view) refresh(); else plan(again ? everyMs : SLOW_MS);
};
const listen = () => {
  if (events) events.close();
  const shown = view;
  events = new EventSource(url("events", shown.group === undefined ? {} : { group: shown.group }));
  events.addEventListener("open", () => shown.said.load().catch(() => {}));
  events.addEventListener("said", event => shown.said.add(JSON.parse(event.data), true));
  events.addEventListener("changed", () => { if (refreshing) again = true; else refresh(); });
  events.addEventListener("error", () => live("not live: the worker does not answer", "off"));
};
const crumbs = (group, member) => {
  const holder = byId("crumbs");
  holder.replaceChildren();
  link(holder, "groups", "#/");
  if (group !== undefined) link(holder, group, to("g", group), "name");
  if (member !== undefined) link(holder, member, to("g", group, "m", member), "name");
  document.title = [member, group, "equipoise console"].filter(Boolean).map(text => visible(text, 60)).join(" · ");
};
const route = () => {
  const [, group, kind, what] = place();
  const stays = view && view.group === group && kind === "t";
  if (!stays && !(view && view.group === group && (kind === "m" ? what : undefined) === view.member)) {
    const main = byId("main");
    main.replaceChildren();
    document.querySelectorAll(".tip").forEach(node => node.remove());
    view = group === undefined ? new GroupsPage(main) : new GroupPage(main, group, kind === "m" ? what : undefined);
    crumbs(group, view.member);
    listen();
    if (!refreshing) refresh();
    scrollTo(0, 0);
  }
  if (kind === "t") explain(group, what); else byId("detail").hidden = true;
};
byId("close").addEventListener("click", closeDetail);
document.addEventListener("keydown", event => { if (event.key === "Escape" && !byId("detail").hidden) closeDetail(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && view) refresh(); });
addEventListener("hashchange", route);
route();
