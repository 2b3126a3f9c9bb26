// The live console: what the worker's groups do now. Reads documents and server-sent events; changes nothing.
import { ask, url } from "./asking.js";
import { byId, clockOf, count, element, make, number, scrolled, span, table, visible } from "./basics.js";
import { Chart } from "./chart.js";
import { taskDetail } from "./detail.js";
import { GroupList } from "./list.js";
import { PHASES, card, changesTable, link, redraw, textCell, to, troubleList } from "./parts.js";
import { whatIf } from "./whatif.js";
/** @typedef {import("./documents").Explanation} Explanation */
/** @typedef {import("./documents").Group} Group */
/** @typedef {import("./documents").Member} Member */
/** @typedef {import("./documents").Sentence} Sentence */
/** @typedef {import("./documents").Wait} Wait */

const SLOW_MS = 2000; // what only grows older is fetched again so often
const MOST_SAID = 200;
/** @type {Record<Wait["kind"], string>} */
const KINDS = {
  starting: "starts", revoking: "is given up", warming: "warms up", waiting: "waits for a slot", standby: "standby restores",
};
/** @type {Record<string, string>} */
const STATES = { unrevoked: "gives tasks up", unreleased: "waits for tasks" };
const messageOf = (/** @type {unknown} */ error) => error instanceof Error ? error.message : String(error);

// ------------------------------------------------------------------------------------------------ places

/** @typedef {[kind: "g" | undefined, group: string | undefined, part: "t" | "m" | undefined, name: string | undefined]} Place */
const place = () => /** @type {Place} */ (location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent));
/** @param {string} text @param {"on" | "off"} state */
const live = (text, state) => {
  const node = byId("live");
  if (node.textContent !== text) { node.textContent = text; node.className = state; }
};

// ------------------------------------------------------------------------------------------------ parts of pages

/** @param {Element} parent @param {string} colour */
const swatch = (parent, colour) => {
  const svg = make("svg", { width: 12, height: 12, class: "swatch", "aria-hidden": true });
  make("rect", { width: 12, height: 12, rx: 3, fill: colour }, svg);
  parent.prepend(svg);
};
/** @param {Element} parent @param {number} part */
const progress = (parent, part) => { // a bar without inline style, which the page's policy forbids
  const svg = make("svg", { width: 96, height: 9, class: "bar", role: "img", "aria-label": `${Math.round(part * 100)} %` }, parent);
  make("rect", { width: 96, height: 9, rx: 4.5, class: "of" }, svg);
  make("rect", { width: Math.max(2, 96 * Math.min(1, Math.max(0, part))).toFixed(1), height: 9, rx: 4.5, class: "done" }, svg);
};

class Said { // the sentences of the worker's log, newest first
  /** @param {Node} parent @param {string} [group] @param {(each: Sentence) => boolean} [only] */
  constructor(parent, group, only = () => true) {
    this.group = group; this.only = only; this.last = 0;
    /** @type {Map<number, Element>} */ this.items = new Map();
    const section = card(parent, "Decisions");
    this.about = element("small", section.querySelector("h2"), "as they are made");
    this.list = element("ol", section, undefined, "said");
    this.list.tabIndex = 0; this.list.setAttribute("aria-label", "decisions, newest first");
  }
  async load() {
    const { document } = await ask("api/said", this.group === undefined ? {} : { group: this.group });
    if (document.last < this.last) { this.last = 0; this.items.clear(); this.list.replaceChildren(); } // another worker's numbers
    for (const each of document.said) this.add(each, false);
    this.sinceMs = document.since_ms;
    this.sayAbout();
    if (!this.list.firstChild) element("li", this.list, "none as far as this worker remembers", "none");
  }
  sayAbout() { // the list keeps the last MOST_SAID
    if (this.sinceMs === undefined) return;
    const oldest = this.items.size < MOST_SAID ? 0 : Date.parse(this.list.lastElementChild?.querySelector("time")?.dateTime ?? "") || 0;
    this.about.textContent = `as they are made, all since ${clockOf(Math.max(this.sinceMs, oldest))}`;
  }
  /** @param {Sentence} each @param {boolean} fresh */
  add(each, fresh) {
    if (this.items.has(each.id) || !this.only(each)) return;
    this.list.querySelector(".none")?.remove();
    const item = element("li", null, undefined, fresh ? "new" : ""), time = element("time", item, clockOf(each.ms));
    time.dateTime = new Date(each.ms).toISOString(); time.title = `fact at offset ${each.offset}`;
    const text = element("div", item, undefined, each.level >= 30 ? "loud" : "");
    if (this.group === undefined) link(text, each.group, to("g", each.group), "where").append(" ");
    element("span", text, visible(each.text, 600), "text");
    const tasks = each.tasks || [];
    for (const task of tasks.length <= 6 ? tasks : []) { text.append(" "); link(text, task, to("g", each.group, "t", task)); }
    // what the stream says may come before what was asked for, which has what came meanwhile
    const later = each.id > this.last ? null : [...this.items].filter(([id]) => id > each.id).sort(([one], [other]) => one - other)[0];
    if (later) later[1].after(item); else this.list.prepend(item);
    this.items.set(each.id, item);
    this.last = Math.max(this.last, each.id);
    while (this.items.size > MOST_SAID) {
      const first = Math.min(...this.items.keys());
      this.items.get(first)?.remove(); this.items.delete(first);
      this.sayAbout();
    }
  }
}

// ------------------------------------------------------------------------------------------------ all groups

class GroupsPage {
  /** @type {undefined} */ group;
  /** @type {undefined} */ member;
  /** @type {null} */ chart = null;
  isRead = false;
  /** @param {HTMLElement} main */
  constructor(main) {
    element("h1", main, "Groups");
    this.sub = element("p", main, "", "sub");
    this.list = new GroupList(main);
    const split = element("div", main, undefined, "split");
    this.changes = scrolled(card(element("div", split), "Changes", "what each was expected to cost, and did"), "changes");
    this.said = new Said(element("div", split));
  }
  async refresh() {
    const { document, everyMs } = await ask("api/groups");
    const { groups } = document, wrong = groups.filter(each => each.level >= 2).length;
    const ready = document.unready ? `; this worker is not ready: ${document.unready}` : "";
    const sub = `${count(groups.length, "group")} of log ${document.log_id}, ${wrong ? number(wrong) : "none"} in trouble${ready}`;
    this.isRead = true;
    if (this.sub.textContent !== visible(sub)) this.sub.textContent = visible(sub);
    this.list.set(groups);
    redraw(this.changes, document.changes, (holder, value) => changesTable(holder, value));
    return everyMs;
  }
}

// ------------------------------------------------------------------------------------------------ one group

/** @param {Node} holder @param {Wait[]} waits @param {string} group @param {string} [still] what is said where there is none */
const waitsTable = (holder, waits, group, still = "") => {
  if (!waits.length) { element("p", holder, visible(still), "key l0"); return; }
  const rows = table(holder, ["task*", "what*", "progress*", "behind", "expected", "why*"], "list");
  for (const each of waits.slice(0, 100)) {
    const row = element("tr", rows), { lag_records: lag, first_lag_records: first } = each;
    link(textCell(row), each.task, to("g", group, "t", each.task));
    const way = [each.source, each.destination].filter(Boolean).map(name => visible(name)).join(" → ") || "nobody";
    element("td", row, `${KINDS[each.kind]}: ${way}`, "text name");
    const bar = textCell(row);
    if (first && lag !== null) progress(bar, 1 - lag / first);
    element("td", row, number(lag));
    const left = each.kind === "revoking" && each.left_ms !== null ? `within ${span(each.left_ms)}` : "";
    element("td", row, each.expected_ms !== null ? `about ${span(each.expected_ms)}` : left);
    element("td", row, visible(each.why), "text");
  }
  if (waits.length > 100) element("p", holder, `and ${number(waits.length - 100)} more`, "key");
};

/** @typedef {{task: string, condition: string, movement: string, kind: "active" | "warmup" | "standby"}} Cell */
/** @param {Element} holder @param {string} group @param {Cell} cell @param {Member | null} member @param {boolean} small */
const drawCell = (holder, group, { task, condition, movement, kind }, member, small) => { // one task on one member
  const text = { active: condition === "running" ? "runs" : condition, warmup: "warm-up", standby: "standby" }[kind];
  const node = element("a", holder, undefined, "cell"), colour = member ? member.colour : "var(--alarm)";
  node.href = to("g", group, "t", task);
  const about = `${task}: ${text} on ${visible(member ? member.member : "nobody")}${movement ? `, ${movement}` : ""}`;
  node.title = about; node.setAttribute("aria-label", about);
  const wide = small ? 13 : 10, svg = make("svg", { width: wide, height: wide, "aria-hidden": true }, node);
  if (kind === "standby") make("rect", { x: 0, y: wide / 2 - 1, width: wide, height: 2, fill: colour }, svg);
  else if (kind === "warmup") {
    for (const at of [0, 4, 8, 12]) make("path", { d: `M${at - 4} ${wide}l${wide} ${-wide}`, stroke: colour, "stroke-width": 2 }, svg);
  } else {
    const fill = ["running", "parked"].includes(condition) ? colour : "none", end = wide - 1;
    const ink = { stroke: "var(--ink)", "stroke-width": .8 };
    const cross = { d: `M1 1L${end} ${end}M${end} 1L1 ${end}`, class: "parkedmark", stroke: "var(--card)", "stroke-width": 2 };
    make("rect", { width: wide, height: wide, rx: 2, fill, stroke: colour, "stroke-width": 2 }, svg);
    if (condition === "parked") make("path", cross, svg);
    if (movement === "revoking") make("rect", { width: wide, height: 3, fill: "var(--card)", ...ink }, svg);
  }
  if (!small) node.append(` ${task}`); else node.tabIndex = -1;
};
/** @param {KeyboardEvent} event */
const goOn = event => { // cells are one stop for the Tab key; arrows go on
  const at = document.activeElement, step = { ArrowRight: at?.nextElementSibling, ArrowLeft: at?.previousElementSibling };
  const next = event.key === "ArrowRight" || event.key === "ArrowLeft" ? step[event.key] : null;
  if (!(next instanceof HTMLElement) || !(at instanceof HTMLElement)) return;
  event.preventDefault(); at.tabIndex = -1; next.tabIndex = 0; next.focus();
};

/** @param {HTMLElement} holder @param {Group} now */
const membersGrid = (holder, now) => {
  const small = now.task_rows.length > 150, rows = table(holder, ["member*", "state*", "active", "copies", "tasks*"], "grid");
  /** @type {Cell[][]} */
  const mine = now.member_rows.map(() => []);
  /** @type {Cell[]} */
  const nobody = [];
  for (const [task, owner, condition, , movement] of now.task_rows) {
    (owner < 0 ? nobody : mine[owner]).push({ task, condition, movement, kind: "active" });
  }
  for (const [task, member, warm] of now.copies) {
    mine[member].push({ task, condition: "", movement: "", kind: warm ? "warmup" : "standby" });
  }
  /** @param {Member | null} member @param {Cell[]} tasks */
  const line = (member, tasks) => {
    const row = element("tr", rows), who = element("td", row, undefined, "text who");
    if (member) swatch(link(who, member.member, to("g", now.group, "m", member.member), "name"), member.colour);
    else element("b", who, "nobody");
    element("td", row, member ? stateOf(member) : "", "text");
    element("td", row, number(member ? member.active : nobody.length), "numbers");
    element("td", row, member ? number(member.standby + member.warmup) : "", "numbers");
    const cells = element("div", textCell(row), undefined, small ? "cells small" : "cells");
    for (const each of tasks) drawCell(cells, now.group, each, member, small);
    if (small && cells.firstElementChild instanceof HTMLElement) {
      cells.firstElementChild.tabIndex = 0;
      cells.addEventListener("keydown", goOn);
    }
  };
  if (nobody.length) line(null, nobody);
  now.member_rows.forEach((member, index) => line(member, mine[index]));
  if (now.tasks_left_out) element("p", holder, `${number(now.tasks_left_out)} tasks more are not shown.`, "key");
};
const stateOf = (/** @type {Member} */ member) => (STATES[member.state] || member.state) + (member.drain ? `, ${member.drain}` : "");

/** @param {HTMLElement} holder @param {Member} own */
const memberFacts = (holder, own) => {
  const list = element("dl", holder, undefined, "facts");
  const rate = own.restore_records_per_s ? `${number(own.restore_records_per_s)} records/s` : "not measured";
  const tags = Object.entries(own.tags).map(([name, value]) => [visible(name, 30), value]);
  for (const [name, value] of [["state", stateOf(own)], ["active", number(own.active)], ["standbys", number(own.standby)],
    ["warm-ups", number(own.warmup)], ["to give up", number(own.revoking)], ["restores", rate],
    ["caught up at a lag of", number(own.acceptable_lag_records)], ["silent", `${span(own.silent_ms)} of ${span(own.session_timeout_ms)}`],
    ["incarnation", own.incarnation], ["capacity", number(own.capacity)],
    ["epoch applied", `${own.applied_epoch} of ${own.assignment_epoch}`], ["crashes", number(own.crashes)],
    ["rack", own.rack || "none"], ...tags, ...(own.advertised ? [["reached at", own.advertised]] : [])]) {
    const pair = element("div", list);
    element("dt", pair, String(name)); element("dd", pair, visible(value));
  }
};

class GroupPage {
  /** @param {HTMLElement} main @param {string} group @param {string} [member] */
  constructor(main, group, member) {
    this.group = group; this.member = member; this.versions = ""; this.isRead = false;
    element("h1", main, visible(member === undefined ? group : member));
    this.sub = element("p", main, "", "sub");
    const split = element("div", main, undefined, "split"), left = element("div", split), right = element("div", split);
    this.troubles = element("div", card(left, "What is wrong"));
    const isMember = member !== undefined, expected = "expected by the restore rates that members measured";
    this.waits = isMember ? null : scrolled(card(left, "What waits for what", expected), "what waits", "scrolling");
    this.facts = isMember ? element("div", card(left, "The member")) : null;
    this.picture = element("section", left); this.picture.id = "picture"; this.picture.setAttribute("aria-label", "who owned what when");
    this.chart = new Chart(this.picture, { onTask: t => { location.hash = to("g", group, "t", this.chart.data.tasks[t]); } });
    this.chart.chosen = member ?? null;
    const tasks = isMember ? "Its tasks" : "Members and their tasks";
    this.grid = scrolled(card(left, tasks, "click a task for why it is there"), "tasks by member");
    this.changes = isMember ? null : scrolled(card(left, "Changes", "what each was expected to cost, and did"), "changes");
    this.said = new Said(right, group, isMember ? each => [each.member, each.source, each.destination].includes(member) : undefined);
    const how = "by the same code that decides, on the state now; changes nothing";
    this.ask = isMember ? null : whatIf(card(right, "What if", how), group);
  }
  async refresh() {
    const drawing = ask("api/timeline", { group: this.group }).catch(error => ({ document: null, everyMs: 0, problem: messageOf(error) }));
    const [{ document: now, everyMs }, timeline] = await Promise.all([ask("api/group", { group: this.group }), drawing]);
    this.isRead = true;
    const own = now.member_rows.find(each => each.member === this.member), group = now.group;
    this.sub.textContent = this.member !== undefined && !own ? "is not a member now" : visible(this.about(now));
    const troubles = this.member === undefined ? now.troubles : now.troubles.filter(each => each.member === this.member);
    const calm = troubles.length < now.troubles.length ? "nothing that concerns this member alone; see the group" : now.calm;
    redraw(this.troubles, [troubles, calm], holder => troubleList(holder, troubles, group, calm));
    const still = now.troubles.length ? "nothing moves or restores; see what is wrong" : now.still;
    if (this.waits) redraw(this.waits, [now.waits, still], holder => waitsTable(holder, now.waits, group, still));
    if (this.changes) redraw(this.changes, now.changes, (holder, value) => changesTable(holder, value, group));
    if (this.facts && own) redraw(this.facts, own, holder => {
      memberFacts(holder, own);
      const mine = now.waits.filter(each => each.source === own.member || each.destination === own.member);
      if (mine.length) waitsTable(holder, mine, group);
    });
    const shown = own ? this.ownPart(now, own) : now;
    const members = shown.member_rows.map(each => [each.member, stateOf(each), each.colour, each.active, each.warmup, each.standby]);
    const seen = [shown.task_rows, shown.copies.map(row => row.slice(0, 3)), members];
    redraw(this.grid, seen, holder => membersGrid(holder, shown));
    const picture = timeline.document, version = picture ? `${picture.from} ${picture.to}` : "problem" in timeline ? timeline.problem : "";
    if (version !== this.versions) {
      this.versions = version;
      if (picture) this.chart.set(picture); else this.picture.replaceChildren(element("p", null, visible(version), "key"));
    }
    this.ask?.(now);
    return Math.max(everyMs, timeline.everyMs);
  }
  /** @param {Group} now */
  about(now) {
    const planned = now.planned ? ` (${count(now.planned, "movement")} planned)` : "";
    const verdict = now.verdict ? `, ${now.verdict.replaceAll("_", " ")}${planned}` : "";
    const led = `${PHASES[now.phase]} by ${now.led_by || "nobody"} (${now.assignor || "no assignor"})`;
    const size = `${count(now.members, "member")}, ${count(now.tasks, "task")}`;
    return `${led}, ${size}, generation ${now.generation}${verdict}; offset ${now.offset}`;
  }
  // The group as if it had this member alone.
  /** @param {Group} now @param {Member} own @returns {Group} */
  ownPart(now, own) {
    const index = now.member_rows.indexOf(own);
    return {
      ...now, member_rows: [own], tasks_left_out: 0,
      task_rows: now.task_rows.filter(row => row[1] === index).map(([task, , ...rest]) => [task, 0, ...rest]),
      copies: now.copies.filter(row => row[1] === index).map(([task, , ...rest]) => [task, 0, ...rest]),
    };
  }
}

// ------------------------------------------------------------------------------------------------ one task, explained

/** @param {HTMLElement} body @param {Explanation} found */
const drawExplanation = (body, found) => {
  /** @param {string} title @param {string[]} texts */
  const sentences = (title, texts) => {
    if (!texts.length) return;
    const part = element("div", body);
    element("h3", part, title);
    const list = element("ul", part, undefined, "sentences");
    for (const text of texts) element("li", list, visible(text, 1000));
  };
  sentences("Why it is there", found.why_here);
  sentences("What is next", found.what_next);
  const part = scrolled(body, "candidates");
  element("h3", part, `Who could have it ${found.candidates_at_ms === null ? "now" : `at ${clockOf(found.candidates_at_ms)}`}`);
  const rows = table(part, ["member*", "lag", "caught up*", "active tasks", "obstacle*"]);
  for (const { lag, ...each } of found.candidates.slice(0, 40)) {
    const row = element("tr", rows);
    element("td", row, visible(each.member_id), "text name");
    element("td", row, lag === null ? "no copy" : lag === "active" ? "runs it" : typeof lag === "number" ? number(lag) : lag);
    element("td", row, each.caught_up ? "yes" : "no", "text");
    element("td", row, number(each.active_tasks));
    element("td", row, visible(each.obstacle || ""), "text");
  }
};

// ------------------------------------------------------------------------------------------------ the page as a whole

class Console { // shows the page that the location names, and refreshes it
  /** @type {GroupsPage | GroupPage} */ view;
  /** @type {EventSource | undefined} */ events;
  timer = 0; isRefreshing = false; again = false; answeredMs = 0;

  /** @param {number} ms */
  plan(ms) { clearTimeout(this.timer); this.timer = setTimeout(() => this.refresh(), ms); }
  async refresh() {
    if (this.isRefreshing) { this.again = true; return; }
    if (document.hidden) { this.plan(SLOW_MS); return; }
    this.isRefreshing = true; this.again = false;
    const shown = this.view;
    let everyMs = 1000;
    try {
      everyMs = await shown.refresh();
      this.answeredMs = Date.now();
      byId("main").classList.remove("stale");
      byId("stale").hidden = true;
      live("live", "on");
    } catch (error) {
      this.isSilent(messageOf(error));
      if (shown === this.view && !shown.isRead) shown.sub.textContent = visible(messageOf(error));
    }
    this.isRefreshing = false;
    if (shown !== this.view) this.refresh(); else this.plan(this.again ? everyMs : SLOW_MS);
  }
  // What was well may be no more: the page says so first, and hides where it said that all is well.
  /** @param {string} why */
  isSilent(why) {
    live(`not live: ${why}`.slice(0, 120), "off");
    byId("main").classList.add("stale");
    const last = this.answeredMs ? ` What follows was so at ${clockOf(this.answeredMs)} by this browser's clock.` : "";
    byId("stale").textContent = `What is so now is not known: ${visible(why, 120)}.${last}`;
    byId("stale").hidden = false;
  }
  listen() {
    this.events?.close();
    const shown = this.view, events = this.events = new EventSource(url("events", shown.group === undefined ? {} : { group: shown.group }));
    events.addEventListener("open", () => shown.said.load().catch(() => {}));
    events.addEventListener("said", event => shown.said.add(JSON.parse(event.data), true));
    events.addEventListener("changed", () => this.refresh());
    events.addEventListener("error", () => this.isSilent("the worker does not answer"));
  }
  crumbs() {
    const holder = byId("crumbs"), { group, member } = this.view;
    holder.replaceChildren();
    link(holder, "groups", "#/");
    if (group !== undefined) link(holder, group, to("g", group), "name");
    if (group !== undefined && member !== undefined) link(holder, member, to("g", group, "m", member), "name");
    document.title = [member, group, "equipoise console"].filter(Boolean).map(text => visible(text, 60)).join(" · ");
  }
  route() {
    const [, group, part, name] = place(), member = part === "m" ? name : undefined, before = this.view;
    if (!before || before.group !== group || (part !== "t" && before.member !== member)) {
      const main = byId("main");
      main.replaceChildren();
      document.querySelectorAll(".tip").forEach(node => node.remove());
      this.view = group === undefined ? new GroupsPage(main) : new GroupPage(main, group, member);
      this.crumbs();
      this.listen();
      if (!this.isRefreshing) this.refresh();
      scrollTo(0, 0);
    }
    if (part === "t" && group !== undefined && name !== undefined) this.explain(group, name); else byId("detail").hidden = true;
  }
  /** @param {string} group @param {string} task */
  async explain(group, task) {
    const body = byId("detail-body"), { chart } = this.view;
    byId("detail").hidden = false;
    byId("detail-title").textContent = `task ${visible(task)} of ${visible(group)}`;
    body.replaceChildren(element("p", null, "asking the assignor…", "above"));
    const asked = ask("api/explain", { group, task }).then(answer => answer.document, messageOf), found = await asked;
    if (place()[3] !== task) return; // another one was chosen meanwhile
    body.replaceChildren();
    if (typeof found === "string") { element("p", body, visible(found), "problem above"); return; }
    drawExplanation(body, found);
    const t = chart?.data ? chart.data.tasks.indexOf(task) : -1;
    if (chart && t >= 0) {
      const history = element("div", body, undefined, "above"), interval = chart.lastOf(t);
      element("h3", history, "What happened to it lately");
      taskDetail(chart, t, interval, element("div", history, undefined, "what"));
      chart.mark(interval ? interval[5] : null);
    }
  }
  close() {
    byId("detail").hidden = true;
    if (this.view.chart?.data) this.view.chart.mark(null);
    const [, group, part] = place(), { member } = this.view;
    if (part === "t" && group !== undefined) location.hash = member === undefined ? to("g", group) : to("g", group, "m", member);
  }
}

const shown = new Console();
byId("close").addEventListener("click", () => shown.close());
document.addEventListener("keydown", event => { if (event.key === "Escape" && !byId("detail").hidden) shown.close(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) shown.refresh(); });
addEventListener("hashchange", () => shown.route());
shown.route();
