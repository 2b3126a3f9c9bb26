// The picture of a group's history, for the timeline page and the live console alike: tasks as rows, members as colours,
// rounds as lines. Times are milliseconds since data.from; members and tasks are indices. `equipoise.replay.timelines.timeline_page`
// says what the data has.
import { Tip, box, clockOf, count, element, endOf, grouped, inkOn, levelAt, make, number, partOf, span, startOf, steps, visible } from "./basics.js";

const GUTTER = 86, RIGHT = 16, CURVE = 40, BAND = 54;
const MOST_MEMBERS = 200, MOST_KEYS = 60; // drawn as rows; named in the legend
const MOST_ROWS_OPEN = 150; // more tasks than this begin as one band for each of their parts
const RUNNING = 0, STARTING = 1, SILENT = 2, NOBODY = 3;
const NICE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];

// `holder` gets the legend, the options, the picture and the slider. `onTask(task, interval)`: a task was chosen.
export class Chart {
  constructor(holder, { onTask = () => {}, onMember = () => {} } = {}) {
    this.onTask = onTask; this.onMember = onMember;
    this.tip = new Tip();
    this.chosen = null; this.marked = null; // a member by name; the offset of a fact
    this.open = new Set(); this.closed = new Set();
    this.from = 0; this.to = 1; this.at = null; // the slider's time; null: the end
    this.whole = true; this.row = 0;
    this.frame(holder);
  }

  frame(holder) {
    const controls = element("nav", holder, undefined, "controls"); controls.id = "controls"; controls.setAttribute("aria-label", "what the picture shows");
    this.legendAt = element("div", controls); this.legendAt.id = "legend";
    const options = element("div", controls); options.id = "options";
    this.filter = element("input", options); this.filter.id = "filter"; this.filter.type = "search"; this.filter.size = 16;
    this.filter.placeholder = "task, as in 0_3 or 1_"; this.filter.setAttribute("aria-label", "show only these tasks");
    const box = (id, text, on) => { const label = element("label", options), input = element("input", label); input.type = "checkbox"; input.id = id; input.checked = on; label.append(` ${text}`); return input; };
    this.moved = box("moved", "only tasks that moved or stopped", false);
    this.copies = box("copies", "standbys", true);
    const label = element("label", options, "rows by "); this.by = element("select", label); this.by.id = "by";
    for (const each of ["sub-topology", "member"]) element("option", this.by, each).value = each;
    const button = (id, text, what) => { const node = element("button", options, text); node.type = "button"; node.id = id; node.addEventListener("click", what); return node; };
    button("nearer", "+", () => this.scale(.5)).setAttribute("aria-label", "look closer");
    button("farther", "−", () => this.scale(2)).setAttribute("aria-label", "look from farther away");
    this.wholeButton = button("whole", "whole time", () => this.zoom(0, this.end()));
    const chart = this.chartAt = element("div", holder); chart.id = "chart";
    this.top = element("div", chart); this.top.id = "top";
    this.body = element("div", chart); this.body.id = "body"; this.body.tabIndex = 0; this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", "tasks over time; arrow keys move, Enter opens a task, plus and minus change the scale");
    const slider = element("div", chart); slider.id = "slider";
    this.range = element("input", slider); this.range.type = "range"; this.range.min = 0; this.range.max = 1000; this.range.value = 1000; this.range.id = "time";
    this.range.setAttribute("aria-label", "time");
    this.readout = element("output", slider); this.readout.id = "readout"; this.readout.htmlFor = "time";
    for (const each of [this.filter, this.moved, this.copies, this.by]) each.addEventListener("input", () => this.draw());
    this.range.addEventListener("input", () => { this.at = this.range.value === "1000" ? null : this.from + this.range.value / 1000 * (this.to - this.from); this.point(); });
    this.body.addEventListener("keydown", event => this.key(event));
    this.body.addEventListener("mousemove", event => this.hover(event));
    this.body.addEventListener("mouseleave", () => { this.tip.hide(); this.drag(null); });
    this.body.addEventListener("mousedown", event => { if (event.button === 0 && this.px(event) >= GUTTER) this.start = this.px(event); });
    this.body.addEventListener("mouseup", event => this.drag(event));
    this.body.addEventListener("dblclick", () => this.zoom(0, this.end()));
    this.body.addEventListener("click", event => this.click(event));
    new ResizeObserver(() => { if (this.data && chart.clientWidth !== this.width) this.draw(); }).observe(chart);
  }

  // Takes the data and draws it. A part of the time that was chosen stays; the end of the time moves on with new data.
  set(data) {
    if (this.start !== undefined) { this.late = data; return; } // the mouse draws something just now
    const before = this.data, shift = before ? before.from - data.from : 0, reached = before && this.to >= before.to;
    this.data = data;
    this.names = data.members.map(name => visible(name));
    this.tasks = data.tasks.map(name => visible(name));
    this.intervals = grouped(data.intervals, 0); this.copiesOf = grouped(data.copies, 0); this.movesOf = grouped(data.moves, "task");
    this.lagsOf = grouped(data.lags, 0); this.lives = grouped(data.lives, "member");
    this.stopped = steps(data.intervals.filter(i => i[2] > RUNNING), 3, 4);
    const active = grouped(data.intervals.filter(i => i[2] < SILENT), 1);
    this.active = data.members.map((_, m) => steps(active.get(m) || [], 3, 4));
    this.mostActive = Math.max(1, ...this.active.map(curve => curve.reduce((most, point) => Math.max(most, point[1]), 0)));
    if (this.whole || !before) { this.from = 0; this.to = this.end(); }
    else {
      const wide = this.to - this.from;
      this.to = reached ? this.end() : Math.min(this.end(), this.to + shift); this.from = Math.max(0, this.to - wide);
    }
    if (this.at !== null) this.at = Math.max(this.from, Math.min(this.to, this.at + shift));
    this.legend();
    this.draw();
  }

  end() { return Math.max(1, this.data.to); }
  x(ms) { return GUTTER + (ms - this.from) / (this.to - this.from) * (this.width - GUTTER - RIGHT); }
  time(px) { return this.from + (px - GUTTER) / (this.width - GUTTER - RIGHT) * (this.to - this.from); }
  px(event) { return event.clientX - this.body.getBoundingClientRect().left; }
  clock(ms, fine) { return clockOf(this.data.from + ms, fine); }
  named(m) { return m < 0 ? "nobody" : this.names[m]; }
  colour(m) { return m < 0 ? "none" : this.data.colours[m]; }
  faded(m) { return this.chosen !== null && this.data.members[m] !== this.chosen ? "dim" : ""; }
  clipped(since, until) {
    if (until <= this.from || since >= this.to) return null;
    const left = this.x(Math.max(since, this.from)), right = this.x(Math.min(until, this.to));
    return [left, Math.max(right - left, .7)];
  }
  scale(by) {
    const middle = this.at === null ? this.to : this.at, wide = Math.max(50, (this.to - this.from) * by), part = (middle - this.from) / (this.to - this.from);
    const from = Math.max(0, middle - wide * part);
    this.zoom(from, Math.min(this.end(), from + wide));
  }
  zoom(from, to) {
    this.tip.hide();
    this.from = from; this.to = Math.max(from + 1, to);
    this.whole = from <= 0 && to >= this.end();
    if (this.at !== null && (this.at < from || this.at > to)) { this.at = null; this.range.value = 1000; }
    this.draw();
  }
  choose(name) { // one member alone, or all
    this.chosen = this.chosen === name ? null : name;
    this.legend(); this.draw();
  }
  mark(offset) { // the fact at this offset: its round is drawn as a strong line
    this.marked = offset; this.draw();
  }

  ticks() {
    const wanted = (this.to - this.from) / Math.max(2, (this.width - GUTTER) / (this.width < 700 && this.to - this.from > 1e4 ? 80 : 110));
    const step = this.tickStep = NICE.find(s => s >= wanted) || Math.ceil(wanted / 864e5) * 864e5, found = [];
    for (let ms = Math.ceil((this.data.from + this.from) / step) * step - this.data.from; ms <= this.to; ms += step) found.push(ms);
    return found;
  }
  backdrop(svg, height) {
    this.data.windows.forEach((w, i) => {
      const at = this.clipped(w.from, w.to);
      if (at && i % 2 === 0) make("rect", { x: at[0], width: at[1], y: 0, height, class: "bandfill" }, svg);
    });
    make("path", { d: this.ticks().map(ms => `M${this.x(ms).toFixed(1)} 0v${height}`).join(""), class: "grid" }, svg);
    const lines = new Map();
    for (const round of this.data.rounds) if (round.ms >= this.from && round.ms <= this.to) {
      const colour = this.data.cause_colours[round.cause] || "var(--faint)";
      lines.set(colour, (lines.get(colour) || "") + `M${this.x(round.ms).toFixed(1)} 0v${height}`);
    }
    for (const [stroke, d] of lines) make("path", { d, stroke, class: "roundline" }, svg);
    const marked = this.marked === null ? null : this.data.rounds.find(round => round.offset === this.marked);
    if (marked) make("path", { d: `M${this.x(marked.ms).toFixed(1)} 0v${height}`, class: "markedline" }, svg);
  }
  patterns(svg) {
    const defs = make("defs", {}, svg);
    const stripes = (id, colour, turn) => {
      const pattern = make("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` }, defs);
      make("rect", { width: 5, height: 5, fill: colour, "fill-opacity": .22 }, pattern);
      make("rect", { width: 2.4, height: 5, fill: colour }, pattern);
    };
    this.data.members.forEach((_, m) => stripes(`h${m}`, this.colour(m), 45));
    const dots = make("pattern", { id: "silent", width: 5, height: 5, patternUnits: "userSpaceOnUse" }, defs);
    make("rect", { width: 5, height: 5, class: "silent" }, dots);
    make("circle", { cx: 1.5, cy: 1.5, r: 1.1, class: "nobody" }, dots);
    make("circle", { cx: 4, cy: 4, r: 1.1, class: "nobody" }, dots);
  }

  // ---------------------------------------------------------------------------------------------- drawing

  draw() {
    if (!this.data) return;
    this.width = Math.max(240, this.chartAt.clientWidth);
    this.wholeButton.disabled = this.whole;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.part : undefined;
    this.drawTop();
    this.drawBody();
    this.point();
    if (focused !== undefined) [...this.svg.querySelectorAll(".part")].find(node => node.dataset.part === focused)?.focus({ preventScroll: true });
  }

  drawTop() {
    this.top.replaceChildren();
    const banded = this.data.windows.length > 0, height = (banded ? 18 : 4) + 34, { width } = this;
    const svg = make("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "rounds" }, this.top);
    this.backdrop(svg, height);
    if (banded) for (const w of this.data.windows) {
      const at = this.clipped(w.from, w.to);
      if (!at) continue;
      make("line", { x1: at[0], x2: at[0], y1: 2, y2: height, class: "grid" }, svg);
      const label = visible(w.label.replaceAll("_", " ")), text = make("text", { x: at[0] + 5, y: 13, class: "band" }, svg, startOf(label, at[1] - 7, 11));
      this.tip.on(text, () => `${label}\n${this.clock(w.from)} to ${this.clock(w.to)}, ${span(w.to - w.from)}\nclick to look at it alone`);
      text.addEventListener("click", () => this.zoom(w.from, w.to));
    }
    const y = banded ? 19 : 5;
    make("text", { x: GUTTER - 8, y: y + 9, "text-anchor": "end", class: "head" }, svg, "rounds");
    for (const round of this.data.rounds) {
      if (round.ms < this.from || round.ms > this.to) continue;
      const fill = this.data.cause_colours[round.cause] || "var(--faint)";
      const mark = make("path", { d: `M${this.x(round.ms)},${y + 11}l-3.4,-9.4h6.8z`, fill, class: round.offset === this.marked ? "round marked" : "round" }, svg);
      this.tip.on(mark, () => this.aboutRound(round));
      mark.addEventListener("click", () => this.mark(this.marked === round.offset ? null : round.offset));
    }
    for (const ms of this.ticks()) if (this.x(ms) < width - 62) make("text", { x: this.x(ms) + 3, y: height - 5 }, svg, this.clock(ms, this.tickStep < 1000));
  }

  drawBody() {
    this.body.replaceChildren();
    const { data, width } = this, shown = this.shown(), parts = this.parts(shown);
    const opened = shown.length <= MOST_ROWS_OPEN, isOpen = part => opened ? !this.closed.has(part) : this.open.has(part);
    const inRows = parts.reduce((sum, [part, tasks]) => sum + (isOpen(part) ? tasks.length : 0), 0);
    const high = inRows <= 45 ? 21 : inRows <= 130 ? 14 : inRows <= 420 ? 8 : 5, titled = parts.length > 1 || !opened;
    const members = data.members.map((_, m) => m).slice(0, MOST_MEMBERS), lifeHigh = data.members.length <= 12 ? 25 : 15;
    const partsHigh = parts.reduce((sum, [part, tasks]) => sum + (titled ? 18 : 0) + (isOpen(part) ? tasks.length * high : BAND) + 6, 0);
    const height = 8 + 14 + members.length * lifeHigh + 14 + 2 * (CURVE + 18) + 20 + partsHigh + 8;
    const svg = this.svg = make("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "group",
      "aria-label": `${count(data.tasks.length, "task")} on ${count(data.members.length, "member")}` });
    this.patterns(svg); this.backdrop(svg, height);
    this.rows = []; // what the mouse and the keyboard point at: {y, high, task} or {y, high, text(ms), click}
    this.paths = new Map(); // fill and class -> path; one node for each, because thousands would be slow
    this.labels = [];
    let y = 8;
    make("text", { x: 10, y: y + 8, class: "head" }, svg, members.length === data.members.length ? "members" : `${number(members.length)} of ${count(data.members.length, "member")}`);
    y += 14;
    for (const m of members) { this.drawMember(svg, m, y, lifeHigh); y += lifeHigh; }
    y += 14;
    for (const [label, curve, css, about] of [["not running", this.stopped, "alarmline", n => `${count(n, "task")} without a running owner`], ["imbalance", data.imbalance, "balanceline", n => `${count(n, "task")} outside the members' shares`]]) {
      if (label === "imbalance" && !curve.length) continue;
      this.drawCurve(svg, y, label, curve, css, about); y += CURVE + 18;
    }
    make("text", { x: 10, y: y + 8, class: "head" }, svg, shown.length === data.tasks.length ? "tasks" : `${number(shown.length)} of ${count(data.tasks.length, "task")}`);
    y += 20;
    this.labelled = y - 13;
    for (const [part, tasks] of parts) {
      if (titled) { this.drawTitle(svg, part, tasks, y, isOpen(part), opened); y += 18; this.labelled = y - 12; }
      if (isOpen(part)) tasks.forEach((t, index) => { this.drawTask(svg, t, y, high, index); y += high; });
      else { this.drawBand(tasks, y); y += BAND; }
      y += 6;
    }
    const layer = svg.querySelector(".firsttext");
    for (const [key, d] of this.paths) { const [fill, css] = key.split("|"); svg.insertBefore(make("path", { d, ...(fill ? { fill } : {}), class: css, "pointer-events": "none" }), layer); }
    for (const [node, parent] of this.labels) parent.appendChild(node);
    this.cursor = make("line", { y1: 0, y2: height, x1: -9, x2: -9, class: "cursor" }, svg);
    this.slide = make("line", { y1: 0, y2: height, x1: -9, x2: -9, class: "slide" }, svg);
    this.focus = make("rect", { x: 1, width: width - 2, y: -99, height: high, class: "focusrow" }, svg);
    this.shade = make("rect", { y: 0, height, x: -9, width: 0, class: "select" }, svg);
    this.body.appendChild(svg);
  }
  add(fill, css, d) { const key = `${fill}|${css}`; this.paths.set(key, (this.paths.get(key) || "") + d); }

  area(curve, top, height, most) {
    let d = "", y = top + height, last = 0;
    for (const [ms, level] of curve) {
      if (ms > this.to) break;
      if (ms < this.from) { last = level; continue; }
      if (!d) d = `M${this.x(this.from)},${top + height}V${(y = top + height - last / most * height)}`;
      d += `H${this.x(ms).toFixed(1)}V${(y = top + height - level / most * height).toFixed(1)}`;
      last = level;
    }
    if (!d) { if (!last) return ""; d = `M${this.x(this.from)},${top + height}V${top + height - last / most * height}`; }
    return d + `H${this.x(Math.min(this.to, this.data.to))}V${top + height}Z`;
  }
  drawMember(svg, m, y, high) { // a lifeline as high as the member has active tasks
    const name = make("text", { x: GUTTER - 8, y: y + high - (high > 15 ? 6 : 3), "text-anchor": "end", class: `name life ${this.faded(m)}` }, svg, endOf(this.names[m], GUTTER - 12, 11));
    this.tip.on(name, () => `${this.names[m]}\nclick to see it alone`);
    name.addEventListener("click", () => { this.choose(this.data.members[m]); this.onMember(m); });
    for (const life of this.lives.get(m) || []) {
      const until = life.to === null ? this.data.to : life.to, at = this.clipped(life.from, until);
      if (!at) continue;
      this.add(this.colour(m), this.faded(m), box(at[0], y + high - 5, at[1], 3));
      const quiet = life.silent !== null && life.to !== null ? this.clipped(life.silent, life.to) : null;
      if (quiet) this.add("url(#silent)", this.faded(m), box(quiet[0], y + high - 6, quiet[1], 5));
      if (life.to !== null && life.to >= this.from && life.to <= this.to) make("text", { x: this.x(life.to) - 4, y: y + high - 1, class: "died" }, svg, "×");
      if (life.from >= this.from && life.from <= this.to) this.add(this.colour(m), this.faded(m), box(this.x(life.from) - 1, y + high - 9, 2, 9));
    }
    const d = this.area(this.active[m], y + 2, high - 7, this.mostActive);
    if (d) this.add(this.colour(m), `${this.faded(m)} soft`, d);
    this.rows.push({ y, high, text: ms => {
      const life = (this.lives.get(m) || []).find(each => ms >= each.from && ms <= (each.to === null ? Infinity : each.to));
      const end = life && life.to !== null ? `\n${visible(life.how)} at ${this.clock(life.to, true)}${life.silent === null ? "" : `, silent for ${span(life.to - life.silent)}`}` : "";
      return `${this.names[m]} at ${this.clock(ms)}: ${life ? `${count(levelAt(this.active[m], ms), "active task")}\nincarnation ${life.incarnation}, capacity ${life.capacity}, joined ${this.clock(life.from, true)}${end}` : "not there"}`;
    }, click: () => this.choose(this.data.members[m]) });
  }
  drawCurve(svg, y, label, curve, css, about) {
    const inside = curve.filter(p => p[0] >= this.from && p[0] <= this.to).map(p => p[1]), before = levelAt(curve, this.from), top = Math.max(before, 0, ...inside), most = Math.max(1, top);
    make("text", { x: GUTTER - 8, y: y + 14, "text-anchor": "end", class: "head" }, svg, label);
    make("text", { x: GUTTER - 8, y: y + 28, "text-anchor": "end" }, svg, `most ${number(top)}`);
    make("line", { x1: GUTTER, x2: this.width - RIGHT, y1: y + CURVE, y2: y + CURVE, class: "grid" }, svg);
    const d = this.area(curve, y, CURVE, most);
    if (d) make("path", { d, class: css }, svg);
    this.rows.push({ y, high: CURVE, text: ms => `${this.clock(ms)}: ${about(levelAt(curve, ms))}` });
  }

  shown() {
    const wanted = this.filter.value.trim(), { data } = this;
    return data.tasks.map((_, t) => t).filter(t => (!wanted || data.tasks[t].startsWith(wanted))
      && (!this.moved.checked || (this.movesOf.get(t) || []).some(m => m.source >= 0) || (this.intervals.get(t) || []).some((i, first) => i[2] > RUNNING && first > 0 && i[4] > this.from && i[3] < this.to)));
  }
  parts(shown) { // [title, tasks] of each part
    const found = new Map(), byMember = this.by.value === "member";
    for (const t of shown) {
      const own = this.intervals.get(t) || [], last = own[own.length - 1];
      const part = byMember ? (last && last[2] !== NOBODY ? this.named(last[1]) : "nobody") : partOf(this.data.tasks[t]);
      if (!found.has(part)) found.set(part, []);
      found.get(part).push(t);
    }
    return byMember ? [...found].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true })) : [...found];
  }
  drawTitle(svg, part, tasks, y, isOpen, opened) {
    const text = `${isOpen ? "▾" : "▸"} ${startOf(part, Math.max(60, this.width - 220), 11)}, ${count(tasks.length, "task")}`;
    const title = make("text", { x: 10, y: y + 12, class: "part firsttext", tabindex: 0, role: "button", "aria-expanded": isOpen, "data-part": part }, svg, text);
    const turn = () => { const set = opened ? this.closed : this.open; if (set.has(part)) set.delete(part); else set.add(part); this.draw(); };
    title.addEventListener("click", event => { event.stopPropagation(); turn(); });
    title.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); turn(); } });
  }
  drawBand(tasks, y) { // who runs how many of these tasks over time, one on top of the other
    const columns = Math.max(40, Math.min(360, Math.floor((this.width - GUTTER - RIGHT) / 3))), wide = (this.width - GUTTER - RIGHT) / columns;
    const levels = Array.from({ length: columns }, () => new Map());
    for (const t of tasks) for (const i of this.intervals.get(t) || []) {
      const first = Math.max(0, Math.floor((i[3] - this.from) / (this.to - this.from) * columns)), last = Math.min(columns, Math.ceil((i[4] - this.from) / (this.to - this.from) * columns));
      const key = i[2] === RUNNING ? i[1] : -i[2];
      for (let column = first; column < last; column += 1) levels[column].set(key, (levels[column].get(key) || 0) + 1);
    }
    levels.forEach((level, column) => {
      const every = [...level].sort((a, b) => (a[0] < 0 ? 1e6 - a[0] : a[0]) - (b[0] < 0 ? 1e6 - b[0] : b[0])), sum = Math.max(1, every.reduce((all, pair) => all + pair[1], 0));
      let bottom = y + BAND - 4;
      for (const [key, n] of every) {
        const part = n / sum * (BAND - 8), high = key < 0 ? Math.max(1.5, part) : part;
        this.add(key >= 0 ? this.colour(key) : key === -NOBODY ? "" : "url(#silent)", key >= 0 ? this.faded(key) : key === -NOBODY ? "nobody" : "", box(GUTTER + column * wide, (bottom - high).toFixed(1), wide + .3, high.toFixed(1)));
        bottom -= part;
      }
    });
    this.rows.push({ y, high: BAND, text: ms => {
      const found = new Map();
      for (const t of tasks) for (const i of this.intervals.get(t) || []) if (i[3] <= ms && ms < i[4]) { const who = i[2] === RUNNING ? this.named(i[1]) : "not running"; found.set(who, (found.get(who) || 0) + 1); }
      return `${this.clock(ms)}, ${count(tasks.length, "task")}\n${[...found].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([who, n]) => `${who}: ${number(n)}`).join("\n")}`;
    } });
  }
  drawTask(svg, t, y, high, index) {
    const bar = Math.max(3, high >= 14 ? high - 8 : high - 2), strip = high >= 14 ? 5 : high >= 8 ? 2 : 0;
    const row = make("rect", { x: 0, width: this.width, y, height: high, class: "row hit" }, svg);
    row.addEventListener("click", event => { event.stopPropagation(); if (!this.dragged) this.pick(t, event.clientX ? this.time(this.px(event)) : this.to); });
    this.rows.push({ y, high, bar, task: t });
    const base = high >= 11 ? y + Math.min(high, 15) - 3 : y + high / 2 + 4;
    if ((high >= 11 || index % 10 === 0) && base - this.labelled >= 12) {
      this.labels.push([make("text", { x: GUTTER - 8, y: base, "text-anchor": "end", class: "name" }, null, endOf(this.tasks[t], GUTTER - 12, 11)), svg]);
      this.labelled = base;
    }
    for (const i of this.intervals.get(t) || []) {
      const at = this.clipped(i[3], i[4]);
      if (!at) continue;
      if (i[2] === RUNNING) {
        this.add(this.colour(i[1]), this.faded(i[1]), box(at[0], y + 2, at[1], bar));
        const name = high >= 18 && at[1] > 20 ? startOf(this.named(i[1]), at[1] - 9, 10) : "";
        if (name) this.labels.push([make("text", { x: at[0] + 5, y: y + bar - 2, class: `in ${this.faded(i[1])}`, fill: inkOn(this.colour(i[1])) }, null, name), svg]);
      } else if (i[2] === STARTING) this.add(`url(#h${i[1]})`, this.faded(i[1]), box(at[0], y + 2, at[1], bar));
      else if (i[2] === SILENT) this.add("url(#silent)", "", box(at[0], y + 2, at[1], bar));
      else { this.add("", "gap", box(at[0], y + 2, at[1], bar)); this.add("", "nobody", box(at[0], y + 2 + bar / 2 - .8, at[1], 1.6)); }
    }
    for (const move of this.movesOf.get(t) || []) for (let n = 0; n < move.steps.length; n += 1) { // told to give it up, and still running it
      if (move.steps[n][1] !== "revoking") continue;
      const at = this.clipped(move.steps[n][0], n + 1 < move.steps.length ? move.steps[n + 1][0] : this.data.to);
      if (at && bar > 3) this.add("", "revoking", box(at[0], y + 2, Math.max(1.5, at[1]), 2.5));
    }
    if (strip) for (const c of this.copiesOf.get(t) || []) {
      const at = this.clipped(c[3], c[4]);
      if (!at || (!c[2] && !this.copies.checked)) continue;
      if (!c[2]) { this.add(this.colour(c[1]), `${this.faded(c[1])} thin`, box(at[0], y + bar + 3.5, at[1], 1.6)); continue; }
      this.add(`url(#h${c[1]})`, this.faded(c[1]), box(at[0], y + bar + 2.6, at[1], strip));
      const lag = strip > 2 && (this.lagsOf.get(t) || []).find(each => each[1] === c[1]);
      if (lag) this.drawLag(lag[2].filter(p => p[0] >= c[3] && p[0] <= c[4]), c[4], y + bar + 2.6, strip);
    }
  }
  drawLag(points, until, top, high) { // how far the copy is behind: full at the beginning, nothing when it is caught up
    const most = Math.max(1, ...points.map(p => p[1]));
    points.forEach((p, n) => {
      const at = this.clipped(p[0], n + 1 < points.length ? points[n + 1][0] : until), part = p[1] / most * high;
      if (at && part > 0) this.add("", "lag", box(at[0], (top + high - part).toFixed(1), at[1], part.toFixed(1)));
    });
  }

  legend() {
    const holder = this.legendAt, { data } = this;
    holder.replaceChildren();
    data.members.slice(0, MOST_KEYS).forEach((name, m) => {
      const button = element("button", holder);
      button.type = "button"; button.title = this.names[m];
      button.setAttribute("aria-pressed", String(this.chosen === name));
      make("rect", { width: 12, height: 12, rx: 3, fill: this.colour(m) }, button.appendChild(make("svg", { width: 12, height: 12, "aria-hidden": true })));
      button.appendChild(document.createTextNode(endOf(this.names[m], 160, 12.5)));
      button.addEventListener("click", () => this.choose(name));
    });
    if (data.members.length > MOST_KEYS) element("span", holder, `and ${count(data.members.length - MOST_KEYS, "more member")}`, "key");
    const key = (text, paint) => {
      const label = element("span", holder, undefined, "key"), svg = make("svg", { width: 22, height: 12, "aria-hidden": true });
      paint(svg); label.appendChild(svg); label.appendChild(document.createTextNode(text));
    };
    if (!data.members.length) return;
    key("warm-up and its lag", svg => { make("rect", { width: 22, height: 5, y: 4, fill: "url(#h0)" }, svg); make("path", { d: "M0 4h7v1h6v2h6v2H0z", class: "lag" }, svg); });
    key("standby", svg => make("rect", { width: 22, height: 2, y: 5, class: "standbykey" }, svg));
    key("granted, starting", svg => make("rect", { width: 22, height: 12, fill: "url(#h0)" }, svg));
    key("to be given up", svg => { make("rect", { width: 22, height: 12, fill: this.colour(0) }, svg); make("rect", { width: 22, height: 2.5, class: "revoking" }, svg); });
    key("owner silent", svg => make("rect", { width: 22, height: 12, fill: "url(#silent)" }, svg));
    key("nobody", svg => { make("rect", { width: 22, height: 12, class: "gap" }, svg); make("rect", { width: 22, height: 1.6, y: 5.2, class: "nobody" }, svg); });
  }

  // ---------------------------------------------------------------------------------------------- what things are

  aboutRound(round) {
    return `generation ${round.generation} at ${this.clock(round.ms, true)} (offset ${round.offset})\n${visible(round.text)}\n${count(round.moves, "move")}, ${count(round.members, "member")} told`;
  }
  roundOf(offset) { return this.data.rounds.find(round => round.offset === offset); }
  interval(t, ms) {
    const near = 2 / (this.width - GUTTER - RIGHT) * (this.to - this.from), own = this.intervals.get(t) || [];
    return own.find(i => i[2] === NOBODY && i[3] - near <= ms && ms < i[4] + near) || own.find(i => i[3] <= ms && ms < i[4]) || null;
  }
  aboutTask(t, ms, below) {
    const copies = (this.copiesOf.get(t) || []).filter(c => c[3] <= ms && ms <= c[4] && (c[2] || this.copies.checked)), texts = [];
    const i = this.interval(t, ms);
    if (i && !(below && copies.length)) {
      const what = i[2] === NOBODY ? "nobody has it" : i[2] === SILENT ? `${this.named(i[1])} was not heard of any more`
        : i[2] === STARTING ? `granted to ${this.named(i[1])}, which restores or waits first` : `runs on ${this.named(i[1])}`;
      texts.push(`${this.tasks[t]}: ${what}\n${this.clock(i[3], true)} to ${this.clock(i[4], true)}, ${span(i[4] - i[3])}`);
      const move = (this.movesOf.get(t) || []).filter(m => m.began <= i[3] && (m.ended === null || m.ended <= i[3] + 1) && m.destination === i[1]).pop();
      if (move) texts.push(`decided ${this.clock(move.began, true)}${move.number === null ? "" : `, decision ${move.number}`}: ${visible(move.why)}`);
      const round = this.roundOf(i[5]);
      texts.push(`since generation ${i[6]}, fact at offset ${i[5]}${round ? `: ${visible(round.text)}` : ""}`);
    }
    for (const c of copies) {
      const lag = (this.lagsOf.get(t) || []).find(each => each[1] === c[1]), points = lag ? lag[2].filter(p => p[0] <= ms) : [];
      const behind = points.length ? `, ${count(points[points.length - 1][1], "record")} behind` : "";
      texts.push(`${this.tasks[t]}: ${c[2] ? "warm-up" : "standby"} on ${this.named(c[1])}${behind}\nsince ${this.clock(c[3], true)}${c[2] ? (c[5] === null ? ", not caught up yet" : `, caught up after ${span(c[5] - c[3])}`) : ""}`);
    }
    return texts.join("\n") || `${this.tasks[t]}: nothing known at ${this.clock(ms)}`;
  }
  point() { // the slider's line and what was then
    const ms = this.at === null ? this.to : this.at, { data } = this;
    if (!this.slide) return;
    const px = this.at === null ? -9 : this.x(ms);
    this.slide.setAttribute("x1", px); this.slide.setAttribute("x2", px);
    if (this.at === null) this.range.value = 1000;
    const running = data.members.map((_, m) => [this.named(m), levelAt(this.active[m], ms - .5)]).filter(pair => pair[1]).slice(0, 8);
    const round = data.rounds.filter(each => each.ms <= ms).pop(), stopped = levelAt(this.stopped, ms - .5);
    const text = [this.clock(ms), running.map(([name, n]) => `${endOf(name, 110, 12)} ${number(n)}`).join(" · "), `${number(stopped)} not running`,
      round ? `generation ${round.generation}: ${visible(round.text)}` : ""].filter(each => each).join("  |  ");
    this.readout.textContent = text;
    this.range.setAttribute("aria-valuetext", text);
  }

  // ---------------------------------------------------------------------------------------------- mouse and keyboard

  rowAt(y) { return this.rows.find(row => y >= row.y && y < row.y + row.high); }
  hover(event) {
    if (!this.svg) return;
    const px = this.px(event), y = event.clientY - this.svg.getBoundingClientRect().top, row = this.rowAt(y), ms = this.time(px);
    const inside = px >= GUTTER;
    this.cursor.setAttribute("x1", inside ? px : -9); this.cursor.setAttribute("x2", inside ? px : -9);
    if (this.start !== undefined && (this.dragged || Math.abs(px - this.start) > 5)) {
      this.dragged = true; this.tip.hide();
      this.shade.setAttribute("x", Math.min(this.start, px)); this.shade.setAttribute("width", Math.abs(px - this.start));
      return;
    }
    if (!row || !inside || ms > this.data.to) { if (!event.target.classList.contains("life")) this.tip.hide(); return; }
    this.tip.show(event.clientX, event.clientY, row.task === undefined ? row.text(ms) : this.aboutTask(row.task, ms, y > row.y + row.bar + 2));
  }
  drag(event) {
    if (this.start !== undefined && this.dragged && event) {
      const px = this.px(event), [a, b] = [this.time(Math.min(this.start, px)), this.time(Math.max(this.start, px))];
      if (b - a >= 2) this.zoom(Math.max(0, a), Math.min(this.end(), b));
    }
    if (this.shade) this.shade.setAttribute("width", 0);
    this.start = undefined;
    if (this.late) { const data = this.late; this.late = null; this.set(data); }
    setTimeout(() => { this.dragged = false; }, 0);
  }
  click(event) {
    const row = this.svg && this.rowAt(event.clientY - this.svg.getBoundingClientRect().top);
    if (row && row.click && !this.dragged && this.px(event) >= GUTTER) row.click();
  }
  pick(t, ms) {
    const i = this.interval(t, ms) || (this.intervals.get(t) || []).slice(-1)[0] || null;
    if (i) this.marked = i[5];
    this.draw();
    this.onTask(t, i);
  }
  key(event) {
    const rows = this.rows || [], step = (this.to - this.from) / 60, ms = this.at === null ? this.to : this.at;
    const go = { ArrowDown: 1, ArrowUp: -1 }[event.key], run = { ArrowRight: step, ArrowLeft: -step }[event.key];
    if (go) this.row = Math.max(0, Math.min(rows.length - 1, this.row + go));
    else if (run) this.at = Math.max(this.from, Math.min(this.to, ms + run));
    else if (event.key === "Home") this.at = this.from;
    else if (event.key === "End") this.at = null;
    else if (event.key === "+" || event.key === "=") { this.scale(.5); }
    else if (event.key === "-") { this.scale(2); }
    else if (event.key === "0") this.zoom(0, this.end());
    else if (event.key === "Enter") { const row = rows[this.row]; if (row && row.task !== undefined) this.pick(row.task, ms - .5); else if (row && row.click) row.click(); }
    else if (event.key === "Escape") { this.tip.hide(); return; }
    else return;
    event.preventDefault();
    if (this.at !== null) this.range.value = Math.round((this.at - this.from) / (this.to - this.from) * 1000);
    this.point();
    const row = this.rows[this.row];
    if (!row) return;
    this.focus.setAttribute("y", row.y); this.focus.setAttribute("height", row.high);
    this.focus.scrollIntoView({ block: "nearest" });
    const at = this.svg.getBoundingClientRect(), now = (this.at === null ? this.to : this.at) - .5;
    const text = row.task === undefined ? row.text(now) : this.aboutTask(row.task, now, false);
    this.tip.show(at.left + this.x(Math.max(this.from, now)), at.top + row.y, text);
    this.readout.textContent = text.replaceAll("\n", ", ");
  }
}
