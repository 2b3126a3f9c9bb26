// The picture of a group's history, for the timeline page and the live console alike: tasks as rows, members as colours,
// rounds as lines. page_data.d.ts says what the data has.
import { Tip, box, button, clockOf, count, element, endOf, grouped, inkOn, levelAt, make, number, partOf } from "./basics.js";
import { span, startOf, steps, visible } from "./basics.js";
/** @typedef {import("./page_data").Interval} Interval */
/** @typedef {import("./page_data").PictureData} PictureData */
/** @typedef {import("./page_data").Round} Round */
/** @typedef {import("./page_data").Curve} Curve */
/** @typedef {import("./basics.js").Attributes} Attributes */
/** @typedef {{y: number, high: number, bar: number, task: number}} TaskRow */
/** @typedef {{y: number, high: number, task?: undefined, text: (ms: number) => string, click?: () => void}} OtherRow */

const GUTTER = 86, RIGHT = 16, CURVE = 40, BAND = 54;
const MOST_MEMBERS = 200, MOST_KEYS = 60; // drawn as rows; named in the legend
const MOST_ROWS_OPEN = 150; // more tasks than this begin as one band for each of their parts
const RUNNING = 0, STARTING = 1, SILENT = 2, NOBODY = 3;
const NICE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5,
  864e5];
/** @param {Attributes} attributes @param {SVGElement} [parent] */
const rect = (attributes, parent) => make("rect", attributes, parent);

export class Chart {
  /** @type {PictureData} */ data;
  /** @type {string[]} */ names = [];
  /** @type {string[]} */ tasks = [];
  /** @type {Map<number, Interval[]>} */ intervals = new Map();
  /** @type {Map<number, import("./page_data").Copy[]>} */ copiesOf = new Map();
  /** @type {Map<number, import("./page_data").Move[]>} */ movesOf = new Map();
  /** @type {Map<number, import("./page_data").Lags[]>} */ lagsOf = new Map();
  /** @type {Map<number, import("./page_data").Life[]>} */ lives = new Map();
  /** @type {Curve} */ stopped = [];
  /** @type {Curve[]} */ active = []; // of each member: tasks that it runs
  mostActive = 1;
  /** @type {string | null} */ chosen = null; // a member by name
  /** @type {number | null} */ marked = null; // the offset of a fact
  /** @type {Set<string>} */ open = new Set();
  /** @type {Set<string>} */ closed = new Set();
  from = 0; to = 1; whole = true; row = 0; width = 0; dragged = false; labelled = 0; tickStep = 1;
  /** @type {number | null} */ at = null; // the slider's time; null: the end
  /** @type {number | undefined} */ start; // where the mouse began to drag
  /** @type {PictureData | null} */ late = null; // data that came meanwhile
  /** @type {(TaskRow | OtherRow)[]} */ rows = []; // what the mouse and the keyboard point at
  /** @type {Map<string, string>} */ paths = new Map(); // fill and class -> path; one node for each, because thousands would be slow
  /** @type {SVGTextElement[]} */ labels = [];
  /** @type {SVGSVGElement} */ svg;
  /** @type {SVGLineElement} */ cursor;
  /** @type {SVGLineElement} */ slide;
  /** @type {SVGRectElement} */ focus;
  /** @type {SVGRectElement} */ shade;

  // `holder` gets the legend, the options, the picture and the slider. `onTask(task, interval)`: a task was chosen.
  /** @param {HTMLElement} holder @param {{onTask?: (task: number, interval: Interval | null) => void}} [heard] */
  constructor(holder, { onTask = () => {} } = {}) {
    this.onTask = onTask;
    this.tip = new Tip();
    const controls = element("nav", holder, undefined, "controls");
    controls.id = "controls"; controls.setAttribute("aria-label", "what the picture shows");
    this.legendAt = element("div", controls); this.legendAt.id = "legend";
    const options = element("div", controls); options.id = "options";
    this.filter = element("input", options); this.filter.id = "filter"; this.filter.type = "search"; this.filter.size = 16;
    this.filter.placeholder = "task, as in 0_3 or 1_"; this.filter.setAttribute("aria-label", "show only these tasks");
    /** @param {string} id @param {string} text @param {boolean} on */
    const option = (id, text, on) => {
      const label = element("label", options), input = element("input", label);
      input.type = "checkbox"; input.id = id; input.checked = on; label.append(` ${text}`);
      return input;
    };
    this.moved = option("moved", "only tasks that moved or stopped", false);
    this.copies = option("copies", "standbys", true);
    const label = element("label", options, "rows by "); this.by = element("select", label); this.by.id = "by";
    for (const each of ["sub-topology", "member"]) element("option", this.by, each).value = each;
    const nearer = button(options, "+", () => this.scale(.5)), farther = button(options, "−", () => this.scale(2));
    nearer.id = "nearer"; nearer.setAttribute("aria-label", "look closer");
    farther.id = "farther"; farther.setAttribute("aria-label", "look from farther away");
    this.wholeButton = button(options, "whole time", () => this.zoom(0, this.end())); this.wholeButton.id = "whole";
    const chart = this.chartAt = element("div", holder); chart.id = "chart";
    this.top = element("div", chart); this.top.id = "top";
    this.body = element("div", chart); this.body.id = "body"; this.body.tabIndex = 0; this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", "tasks over time; arrow keys move, Enter opens a task, plus and minus change the scale");
    const slider = element("div", chart); slider.id = "slider";
    this.range = element("input", slider);
    for (const [name, value] of Object.entries({ type: "range", min: "0", max: "1000", value: "1000", id: "time", "aria-label": "time" })) {
      this.range.setAttribute(name, value);
    }
    this.readout = element("output", slider); this.readout.id = "readout"; this.readout.htmlFor.value = "time";
    for (const each of [this.filter, this.moved, this.copies, this.by]) each.addEventListener("input", () => this.draw());
    this.range.addEventListener("input", () => {
      this.at = this.range.value === "1000" ? null : this.from + Number(this.range.value) / 1000 * (this.to - this.from);
      this.point();
    });
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
  /** @param {PictureData} data */
  set(data) {
    if (this.start !== undefined) { this.late = data; return; } // the mouse draws something just now
    const before = this.data, shift = before ? before.from - data.from : 0, reached = before && this.to >= before.to;
    this.data = data;
    this.names = data.members.map(name => visible(name));
    this.tasks = data.tasks.map(name => visible(name));
    this.intervals = grouped(data.intervals, 0); this.copiesOf = grouped(data.copies, 0); this.lagsOf = grouped(data.lags, 0);
    this.movesOf = grouped(data.moves, "task"); this.lives = grouped(data.lives, "member");
    this.stopped = steps(data.intervals.filter(i => i[2] > RUNNING));
    const active = grouped(data.intervals.filter(i => i[2] < SILENT), 1);
    this.active = data.members.map((_, m) => steps(active.get(m) || []));
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
  /** @param {number} ms */
  x(ms) { return GUTTER + (ms - this.from) / (this.to - this.from) * (this.width - GUTTER - RIGHT); }
  /** @param {number} px */
  time(px) { return this.from + (px - GUTTER) / (this.width - GUTTER - RIGHT) * (this.to - this.from); }
  /** @param {MouseEvent} event */
  px(event) { return event.clientX - this.body.getBoundingClientRect().left; }
  /** @param {number} ms @param {boolean} [fine] */
  clock(ms, fine) { return clockOf(this.data.from + ms, fine); }
  /** @param {number} m */
  named(m) { return m < 0 ? "nobody" : this.names[m]; }
  /** @param {number} m */
  colour(m) { return m < 0 ? "none" : this.data.colours[m]; }
  /** @param {number} m */
  faded(m) { return this.chosen !== null && this.data.members[m] !== this.chosen ? "dim" : ""; }
  /** @param {number} since @param {number} until */
  clipped(since, until) { // left and width of a span, as far as it is in sight
    if (until <= this.from || since >= this.to) return null;
    const left = this.x(Math.max(since, this.from)), right = this.x(Math.min(until, this.to));
    return [left, Math.max(right - left, .7)];
  }
  now() { return this.at === null ? this.to : this.at; }
  /** @param {number} by */
  scale(by) {
    const middle = this.now(), wide = Math.max(50, (this.to - this.from) * by), part = (middle - this.from) / (this.to - this.from);
    const from = Math.max(0, middle - wide * part);
    this.zoom(from, Math.min(this.end(), from + wide));
  }
  /** @param {number} from @param {number} to */
  zoom(from, to) {
    this.tip.hide();
    this.from = from; this.to = Math.max(from + 1, to);
    this.whole = from <= 0 && to >= this.end();
    if (this.at !== null && (this.at < from || this.at > to)) { this.at = null; this.range.value = "1000"; }
    this.draw();
  }
  /** @param {string} name */
  choose(name) { // one member alone, or all
    this.chosen = this.chosen === name ? null : name;
    this.legend(); this.draw();
  }
  /** @param {number | null} offset */
  mark(offset) { // the fact at this offset: its round is drawn as a strong line
    this.marked = offset; this.draw();
  }

  ticks() {
    const wide = this.width < 700 && this.to - this.from > 1e4 ? 80 : 110, found = [];
    const wanted = (this.to - this.from) / Math.max(2, (this.width - GUTTER) / wide);
    const step = this.tickStep = NICE.find(s => s >= wanted) || Math.ceil(wanted / 864e5) * 864e5;
    for (let ms = Math.ceil((this.data.from + this.from) / step) * step - this.data.from; ms <= this.to; ms += step) found.push(ms);
    return found;
  }
  /** @param {SVGElement} svg @param {number} height */
  backdrop(svg, height) {
    this.data.windows.forEach((w, i) => {
      const at = this.clipped(w.from, w.to);
      if (at && i % 2 === 0) rect({ x: at[0], width: at[1], y: 0, height, class: "bandfill" }, svg);
    });
    make("path", { d: this.ticks().map(ms => `M${this.x(ms).toFixed(1)} 0v${height}`).join(""), class: "grid" }, svg);
    const lines = new Map();
    for (const round of this.data.rounds) if (round.ms >= this.from && round.ms <= this.to) {
      const colour = this.data.cause_colours[round.cause] || "var(--faint)";
      lines.set(colour, (lines.get(colour) || "") + `M${this.x(round.ms).toFixed(1)} 0v${height}`);
    }
    for (const [stroke, d] of lines) make("path", { d, stroke, class: "roundline" }, svg);
    const marked = this.roundOf(this.marked);
    if (marked) make("path", { d: `M${this.x(marked.ms).toFixed(1)} 0v${height}`, class: "markedline" }, svg);
  }
  /** @param {SVGElement} svg */
  patterns(svg) {
    const defs = make("defs", {}, svg), tile = { width: 5, height: 5, patternUnits: "userSpaceOnUse" };
    this.data.members.forEach((_, m) => {
      const stripes = make("pattern", { ...tile, id: `h${m}`, patternTransform: "rotate(45)" }, defs);
      rect({ width: 5, height: 5, fill: this.colour(m), "fill-opacity": .22 }, stripes);
      rect({ width: 2.4, height: 5, fill: this.colour(m) }, stripes);
    });
    const dots = make("pattern", { ...tile, id: "silent" }, defs);
    rect({ width: 5, height: 5, class: "silent" }, dots);
    make("circle", { cx: 1.5, cy: 1.5, r: 1.1, class: "nobody" }, dots);
    make("circle", { cx: 4, cy: 4, r: 1.1, class: "nobody" }, dots);
  }

  // ---------------------------------------------------------------------------------------------- drawing

  draw() {
    if (!this.data) return;
    this.width = Math.max(240, this.chartAt.clientWidth);
    this.wholeButton.disabled = this.whole;
    const focused = document.activeElement?.getAttribute("data-part");
    this.drawTop();
    this.drawBody();
    this.point();
    if (!focused) return;
    const parts = /** @type {NodeListOf<SVGTextElement>} */ (this.svg.querySelectorAll(".part"));
    [...parts].find(node => node.dataset.part === focused)?.focus({ preventScroll: true });
  }

  /** @param {number} height */
  frame(height) { return { height, viewBox: `0 0 ${this.width} ${height}`, preserveAspectRatio: "none" }; }

  drawTop() {
    this.top.replaceChildren();
    const banded = this.data.windows.length > 0, height = (banded ? 18 : 4) + 34, { width } = this;
    const svg = make("svg", { ...this.frame(height), role: "img", "aria-label": "rounds" }, this.top);
    this.backdrop(svg, height);
    if (banded) for (const w of this.data.windows) {
      const at = this.clipped(w.from, w.to);
      if (!at) continue;
      make("line", { x1: at[0], x2: at[0], y1: 2, y2: height, class: "grid" }, svg);
      const label = visible(w.label.replaceAll("_", " "));
      const text = make("text", { x: at[0] + 5, y: 13, class: "band" }, svg, startOf(label, at[1] - 7, 11));
      this.tip.on(text, () => `${label}\n${this.clock(w.from)} to ${this.clock(w.to)}, ${span(w.to - w.from)}\nclick to look at it alone`);
      text.addEventListener("click", () => this.zoom(w.from, w.to));
    }
    const y = banded ? 19 : 5;
    make("text", { x: GUTTER - 8, y: y + 9, "text-anchor": "end", class: "head" }, svg, "rounds");
    for (const round of this.data.rounds) {
      if (round.ms < this.from || round.ms > this.to) continue;
      const fill = this.data.cause_colours[round.cause] || "var(--faint)", { offset } = round;
      const css = offset !== null && offset === this.marked ? "round marked" : "round";
      const mark = make("path", { d: `M${this.x(round.ms)},${y + 11}l-3.4,-9.4h6.8z`, fill, class: css }, svg);
      this.tip.on(mark, () => this.aboutRound(round));
      mark.addEventListener("click", () => this.mark(this.marked === offset ? null : offset));
    }
    for (const ms of this.ticks().filter(each => this.x(each) < width - 62)) {
      make("text", { x: this.x(ms) + 3, y: height - 5 }, svg, this.clock(ms, this.tickStep < 1000));
    }
  }

  drawBody() {
    this.body.replaceChildren();
    const { data, width } = this, shown = this.shown(), parts = this.parts(shown);
    const opened = shown.length <= MOST_ROWS_OPEN;
    const isOpen = (/** @type {string} */ part) => opened ? !this.closed.has(part) : this.open.has(part);
    const inRows = parts.reduce((sum, [part, tasks]) => sum + (isOpen(part) ? tasks.length : 0), 0);
    const high = inRows <= 45 ? 21 : inRows <= 130 ? 14 : inRows <= 420 ? 8 : 5, titled = parts.length > 1 || !opened;
    const members = data.members.map((_, m) => m).slice(0, MOST_MEMBERS), lifeHigh = data.members.length <= 12 ? 25 : 15;
    const partsHigh = parts.reduce((sum, [part, own]) => sum + (titled ? 18 : 0) + (isOpen(part) ? own.length * high : BAND) + 6, 0);
    const height = 8 + 14 + members.length * lifeHigh + 14 + 2 * (CURVE + 18) + 20 + partsHigh + 8;
    const about = `${count(data.tasks.length, "task")} on ${count(data.members.length, "member")}`;
    const svg = this.svg = make("svg", { ...this.frame(height), role: "group", "aria-label": about });
    this.patterns(svg); this.backdrop(svg, height);
    this.rows = []; this.paths = new Map(); this.labels = [];
    let y = 8;
    /** @param {number} drawn @param {number} all @param {string} what */
    const title = (drawn, all, what) => make("text", { x: 10, y: y + 8, class: "head" }, svg,
      drawn === all ? `${what}s` : `${number(drawn)} of ${count(all, what)}`);
    title(members.length, data.members.length, "member");
    y += 14;
    for (const m of members) { this.drawMember(svg, m, y, lifeHigh); y += lifeHigh; }
    y += 14;
    this.drawCurve(svg, y, "not running", this.stopped, "alarmline", "without a running owner"); y += CURVE + 18;
    if (data.imbalance.length) {
      this.drawCurve(svg, y, "imbalance", data.imbalance, "balanceline", "outside the members' shares"); y += CURVE + 18;
    }
    title(shown.length, data.tasks.length, "task");
    y += 20;
    this.labelled = y - 13;
    for (const [part, tasks] of parts) {
      if (titled) { this.drawTitle(svg, part, tasks, y, isOpen(part), opened); y += 18; this.labelled = y - 12; }
      if (isOpen(part)) tasks.forEach((t, index) => { this.drawTask(svg, t, y, high, index); y += high; });
      else { this.drawBand(tasks, y); y += BAND; }
      y += 6;
    }
    const layer = svg.querySelector(".firsttext");
    for (const [key, d] of this.paths) {
      const [fill, css] = key.split("|");
      svg.insertBefore(make("path", { d, ...(fill ? { fill } : {}), class: css, "pointer-events": "none" }), layer);
    }
    svg.append(...this.labels);
    this.cursor = make("line", { y1: 0, y2: height, x1: -9, x2: -9, class: "cursor" }, svg);
    this.slide = make("line", { y1: 0, y2: height, x1: -9, x2: -9, class: "slide" }, svg);
    this.focus = rect({ x: 1, width: width - 2, y: -99, height: high, class: "focusrow" }, svg);
    this.shade = rect({ y: 0, height, x: -9, width: 0, class: "select" }, svg);
    this.body.appendChild(svg);
  }
  /** @param {string} fill @param {string} css @param {string} d */
  add(fill, css, d) { const key = `${fill}|${css}`; this.paths.set(key, (this.paths.get(key) || "") + d); }

  /** @param {Curve} curve @param {number} top @param {number} height @param {number} most */
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
  // What stands before a row.
  /** @param {SVGElement | null} svg @param {number} y @param {string} css @param {string} text */
  before(svg, y, css, text) { return make("text", { x: GUTTER - 8, y, "text-anchor": "end", class: css }, svg, text); }
  /** @param {SVGElement} svg @param {number} m @param {number} y @param {number} high */
  drawMember(svg, m, y, high) { // a lifeline as high as the member has active tasks
    const name = this.before(svg, y + high - (high > 15 ? 6 : 3), `name life ${this.faded(m)}`, endOf(this.names[m], GUTTER - 12, 11));
    this.tip.on(name, () => `${this.names[m]}\nclick to see it alone`);
    name.addEventListener("click", () => this.choose(this.data.members[m]));
    for (const life of this.lives.get(m) || []) {
      const until = life.to === null ? this.data.to : life.to, at = this.clipped(life.from, until);
      if (!at) continue;
      this.add(this.colour(m), this.faded(m), box(at[0], y + high - 5, at[1], 3));
      const quiet = life.silent !== null && life.to !== null ? this.clipped(life.silent, life.to) : null;
      if (quiet) this.add("url(#silent)", this.faded(m), box(quiet[0], y + high - 6, quiet[1], 5));
      const inSight = (/** @type {number} */ ms) => ms >= this.from && ms <= this.to;
      if (life.to !== null && inSight(life.to)) make("text", { x: this.x(life.to) - 4, y: y + high - 1, class: "died" }, svg, "×");
      if (inSight(life.from)) this.add(this.colour(m), this.faded(m), box(this.x(life.from) - 1, y + high - 9, 2, 9));
    }
    const d = this.area(this.active[m], y + 2, high - 7, this.mostActive);
    if (d) this.add(this.colour(m), `${this.faded(m)} soft`, d);
    const text = (/** @type {number} */ ms) => `${this.names[m]} at ${this.clock(ms)}: ${this.aboutLife(m, ms)}`;
    this.rows.push({ y, high, text, click: () => this.choose(this.data.members[m]) });
  }
  /** @param {number} m @param {number} ms */
  aboutLife(m, ms) {
    const life = (this.lives.get(m) || []).find(each => ms >= each.from && ms <= (each.to === null ? Infinity : each.to));
    if (!life) return "not there";
    const silent = life.silent === null || life.to === null ? "" : `, silent for ${span(life.to - life.silent)}`;
    const end = life.to === null ? "" : `\n${visible(life.how)} at ${this.clock(life.to, true)}${silent}`;
    const began = `incarnation ${life.incarnation}, capacity ${life.capacity}, joined ${this.clock(life.from, true)}`;
    return `${count(levelAt(this.active[m], ms), "active task")}\n${began}${end}`;
  }
  /** @param {SVGElement} svg @param {number} y @param {string} label @param {Curve} curve @param {string} css @param {string} about */
  drawCurve(svg, y, label, curve, css, about) {
    const inside = curve.filter(p => p[0] >= this.from && p[0] <= this.to).map(p => p[1]);
    const top = Math.max(levelAt(curve, this.from), 0, ...inside), most = Math.max(1, top);
    this.before(svg, y + 14, "head", label);
    this.before(svg, y + 28, "", `most ${number(top)}`);
    make("line", { x1: GUTTER, x2: this.width - RIGHT, y1: y + CURVE, y2: y + CURVE, class: "grid" }, svg);
    const d = this.area(curve, y, CURVE, most);
    if (d) make("path", { d, class: css }, svg);
    this.rows.push({ y, high: CURVE, text: ms => `${this.clock(ms)}: ${count(levelAt(curve, ms), "task")} ${about}` });
  }

  shown() {
    const wanted = this.filter.value.trim(), { data } = this;
    const stopped = (/** @type {Interval} */ i) => i[2] > RUNNING && i[4] > this.from && i[3] < this.to;
    return data.tasks.map((_, t) => t).filter(t => (!wanted || data.tasks[t].startsWith(wanted)) && (!this.moved.checked
      || (this.movesOf.get(t) || []).some(m => m.source >= 0) || (this.intervals.get(t) || []).slice(1).some(stopped)));
  }
  /** @param {number[]} shown */
  parts(shown) { // [title, tasks] of each part
    /** @type {Map<string, number[]>} */
    const found = new Map(), byMember = this.by.value === "member";
    for (const t of shown) {
      const own = this.intervals.get(t) || [], last = own[own.length - 1];
      const part = byMember ? (last && last[2] !== NOBODY ? this.named(last[1]) : "nobody") : partOf(this.data.tasks[t]);
      found.set(part, [...found.get(part) || [], t]);
    }
    return byMember ? [...found].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true })) : [...found];
  }
  /**
   * @param {SVGElement} svg @param {string} part @param {number[]} tasks @param {number} y @param {boolean} isOpen
   * @param {boolean} opened all parts are open but those that were closed
   */
  drawTitle(svg, part, tasks, y, isOpen, opened) {
    const text = `${isOpen ? "▾" : "▸"} ${startOf(part, Math.max(60, this.width - 220), 11)}, ${count(tasks.length, "task")}`;
    const role = { role: "button", tabindex: 0, "aria-expanded": isOpen, "data-part": part };
    const title = make("text", { x: 10, y: y + 12, class: "part firsttext", ...role }, svg, text);
    const turn = (/** @type {Event} */ event) => {
      const set = opened ? this.closed : this.open;
      event.preventDefault(); event.stopPropagation();
      if (!set.delete(part)) set.add(part);
      this.draw();
    };
    title.addEventListener("click", turn);
    title.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") turn(event); });
  }
  /** @param {number[]} tasks @param {number} y */
  drawBand(tasks, y) { // who runs how many of these tasks over time, one on top of the other
    const across = this.width - GUTTER - RIGHT, columns = Math.max(40, Math.min(360, Math.floor(across / 3))), wide = across / columns;
    /** @type {Map<number, number>[]} */
    const levels = Array.from({ length: columns }, () => new Map()); // member, or what it is instead, negative -> tasks
    const own = tasks.flatMap(t => this.intervals.get(t) || []);
    const place = (/** @type {number} */ ms) => (ms - this.from) / (this.to - this.from) * columns;
    for (const i of own) {
      const last = Math.min(columns, Math.ceil(place(i[4]))), key = i[2] === RUNNING ? i[1] : -i[2];
      for (let at = Math.max(0, Math.floor(place(i[3]))); at < last; at += 1) levels[at].set(key, (levels[at].get(key) || 0) + 1);
    }
    const order = (/** @type {number} */ key) => key < 0 ? 1e6 - key : key;
    levels.forEach((level, column) => {
      const every = [...level].sort((a, b) => order(a[0]) - order(b[0])), sum = Math.max(1, every.reduce((all, pair) => all + pair[1], 0));
      let bottom = y + BAND - 4;
      for (const [key, n] of every) {
        const part = n / sum * (BAND - 8), high = key < 0 ? Math.max(1.5, part) : part;
        const at = box(GUTTER + column * wide, (bottom - high).toFixed(1), wide + .3, high.toFixed(1));
        if (key >= 0) this.add(this.colour(key), this.faded(key), at);
        else if (key === -NOBODY) this.add("", "nobody", at);
        else this.add("url(#silent)", "", at);
        bottom -= part;
      }
    });
    this.rows.push({ y, high: BAND, text: ms => {
      /** @type {Map<string, number>} */
      const found = new Map();
      for (const i of own) {
        const who = i[2] === RUNNING ? this.named(i[1]) : "not running";
        if (i[3] <= ms && ms < i[4]) found.set(who, (found.get(who) || 0) + 1);
      }
      const most = [...found].sort((a, b) => b[1] - a[1]).slice(0, 12);
      return `${this.clock(ms)}, ${count(tasks.length, "task")}\n${most.map(([who, n]) => `${who}: ${number(n)}`).join("\n")}`;
    } });
  }
  /** @param {SVGElement} svg @param {number} t @param {number} y @param {number} high @param {number} index */
  drawTask(svg, t, y, high, index) {
    const bar = Math.max(3, high >= 14 ? high - 8 : high - 2), strip = high >= 14 ? 5 : high >= 8 ? 2 : 0;
    const row = rect({ x: 0, width: this.width, y, height: high, class: "row hit" }, svg);
    row.addEventListener("click", event => {
      event.stopPropagation();
      if (!this.dragged) this.pick(t, event.clientX ? this.time(this.px(event)) : this.to);
    });
    this.rows.push({ y, high, bar, task: t });
    const base = high >= 11 ? y + Math.min(high, 15) - 3 : y + high / 2 + 4;
    if ((high >= 11 || index % 10 === 0) && base - this.labelled >= 12) {
      this.labels.push(this.before(null, base, "name", endOf(this.tasks[t], GUTTER - 12, 11)));
      this.labelled = base;
    }
    for (const i of this.intervals.get(t) || []) {
      const at = this.clipped(i[3], i[4]);
      if (!at) continue;
      if (i[2] === RUNNING) {
        this.add(this.colour(i[1]), this.faded(i[1]), box(at[0], y + 2, at[1], bar));
        const name = high >= 18 && at[1] > 20 ? startOf(this.named(i[1]), at[1] - 9, 10) : "";
        const attributes = { x: at[0] + 5, y: y + bar - 2, class: `in ${this.faded(i[1])}`, fill: inkOn(this.colour(i[1])) };
        if (name) this.labels.push(make("text", attributes, null, name));
      } else if (i[2] === STARTING) this.add(`url(#h${i[1]})`, this.faded(i[1]), box(at[0], y + 2, at[1], bar));
      else if (i[2] === SILENT) this.add("url(#silent)", "", box(at[0], y + 2, at[1], bar));
      else {
        this.add("", "gap", box(at[0], y + 2, at[1], bar));
        this.add("", "nobody", box(at[0], y + 2 + bar / 2 - .8, at[1], 1.6));
      }
    }
    for (const move of this.movesOf.get(t) || []) move.steps.forEach(([ms, state], n) => { // asked to give it up, and still running it
      const at = state === "revoking" && this.clipped(ms, n + 1 < move.steps.length ? move.steps[n + 1][0] : this.data.to);
      if (at && bar > 3) this.add("", "revoking", box(at[0], y + 2, Math.max(1.5, at[1]), 2.5));
    });
    if (strip) for (const c of this.copiesOf.get(t) || []) {
      const at = this.clipped(c[3], c[4]);
      if (!at || (!c[2] && !this.copies.checked)) continue;
      if (!c[2]) { this.add(this.colour(c[1]), `${this.faded(c[1])} thin`, box(at[0], y + bar + 3.5, at[1], 1.6)); continue; }
      this.add(`url(#h${c[1]})`, this.faded(c[1]), box(at[0], y + bar + 2.6, at[1], strip));
      const lag = strip > 2 && (this.lagsOf.get(t) || []).find(each => each[1] === c[1]);
      if (lag) this.drawLag(lag[2].filter(p => p[0] >= c[3] && p[0] <= c[4]), c[4], y + bar + 2.6, strip);
    }
  }
  /** @param {Curve} points @param {number} until @param {number} top @param {number} high */
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
      const node = button(holder, "", () => this.choose(name));
      node.title = this.names[m];
      node.setAttribute("aria-pressed", String(this.chosen === name));
      rect({ width: 12, height: 12, rx: 3, fill: this.colour(m) }, make("svg", { width: 12, height: 12, "aria-hidden": true }, node));
      node.append(endOf(this.names[m], 160, 12.5));
    });
    if (data.members.length > MOST_KEYS) element("span", holder, `and ${count(data.members.length - MOST_KEYS, "more member")}`, "key");
    /** @param {string} text @param {Attributes[]} parts */
    const key = (text, ...parts) => {
      const label = element("span", holder, undefined, "key"), svg = make("svg", { width: 22, height: 12, "aria-hidden": true }, label);
      for (const each of parts) make("d" in each ? "path" : "rect", "d" in each ? each : { width: 22, height: 12, ...each }, svg);
      label.append(text);
    };
    if (!data.members.length) return;
    key("warm-up and its lag", { height: 5, y: 4, fill: "url(#h0)" }, { d: "M0 4h7v1h6v2h6v2H0z", class: "lag" });
    key("standby", { height: 2, y: 5, class: "standbykey" });
    key("granted, starting", { fill: "url(#h0)" });
    key("to be given up", { fill: this.colour(0) }, { height: 2.5, class: "revoking" });
    key("owner silent", { fill: "url(#silent)" });
    key("nobody", { class: "gap" }, { height: 1.6, y: 5.2, class: "nobody" });
  }

  // ---------------------------------------------------------------------------------------------- what things are

  /** @param {Round} round */
  aboutRound(round) {
    const where = round.offset === null ? "" : ` (offset ${round.offset})`;
    const whose = `${count(round.moves, "move")}, ${count(round.members, "member")} told`;
    return `generation ${round.generation} at ${this.clock(round.ms, true)}${where}\n${visible(round.text)}\n${whose}`;
  }
  /** @param {number | null} offset */
  roundOf(offset) { return offset === null ? undefined : this.data.rounds.find(round => round.offset === offset); }
  /** @param {number} t */
  lastOf(t) { return (this.intervals.get(t) || []).at(-1) || null; }
  /** @param {number} t @param {number} ms @returns {Interval | null} */
  interval(t, ms) {
    const near = 2 / (this.width - GUTTER - RIGHT) * (this.to - this.from), own = this.intervals.get(t) || [];
    return own.find(i => i[2] === NOBODY && i[3] - near <= ms && ms < i[4] + near) || own.find(i => i[3] <= ms && ms < i[4]) || null;
  }
  /** @param {number} t @param {number} ms @param {boolean} below */
  aboutTask(t, ms, below) {
    const copies = (this.copiesOf.get(t) || []).filter(c => c[3] <= ms && ms <= c[4] && (c[2] || this.copies.checked)), texts = [];
    const i = this.interval(t, ms);
    if (i && !(below && copies.length)) {
      const [, owner, condition, from, to, offset, generation] = i, who = this.named(owner);
      const what = condition === NOBODY ? "nobody has it" : condition === SILENT ? `${who} was not heard of any more`
        : condition === STARTING ? `granted to ${who}, which restores or waits first` : `runs on ${who}`;
      texts.push(`${this.tasks[t]}: ${what}\n${this.clock(from, true)} to ${this.clock(to, true)}, ${span(to - from)}`);
      const before = (this.movesOf.get(t) || []).filter(m => m.began <= from && (m.ended === null || m.ended <= from + 1));
      const move = before.filter(m => m.destination === owner).pop(), round = this.roundOf(offset);
      const decision = !move || move.number === null ? "" : `, decision ${move.number}`;
      if (move) texts.push(`decided ${this.clock(move.began, true)}${decision}: ${visible(move.why)}`);
      const fact = offset === null ? "" : `, fact at offset ${offset}${round ? `: ${visible(round.text)}` : ""}`;
      texts.push(`since generation ${generation}${fact}`);
    }
    for (const [, member, isWarmup, from, , ready] of copies) {
      const lag = (this.lagsOf.get(t) || []).find(each => each[1] === member), last = lag?.[2].filter(p => p[0] <= ms).pop();
      const behind = last ? `, ${count(last[1], "record")} behind` : "";
      const caughtUp = !isWarmup ? "" : ready === null ? ", not caught up yet" : `, caught up after ${span(ready - from)}`;
      const what = `${isWarmup ? "warm-up" : "standby"} on ${this.named(member)}${behind}`;
      texts.push(`${this.tasks[t]}: ${what}\nsince ${this.clock(from, true)}${caughtUp}`);
    }
    return texts.join("\n") || `${this.tasks[t]}: nothing known at ${this.clock(ms)}`;
  }
  /** @param {SVGLineElement} line @param {number} px */
  stand(line, px) { line.setAttribute("x1", String(px)); line.setAttribute("x2", String(px)); }
  point() { // the slider's line and what was then
    const ms = this.now(), { data } = this;
    if (!this.slide) return;
    this.stand(this.slide, this.at === null ? -9 : this.x(ms));
    if (this.at === null) this.range.value = "1000";
    const levels = this.active.map(curve => levelAt(curve, ms - .5));
    const running = data.members.map((_, m) => m).filter(m => levels[m]).slice(0, 8);
    const round = data.rounds.filter(each => each.ms <= ms).pop(), stopped = levelAt(this.stopped, ms - .5);
    const runs = running.map(m => `${endOf(this.named(m), 110, 12)} ${number(levels[m])}`).join(" · ");
    const last = round ? `generation ${round.generation}: ${visible(round.text)}` : "";
    const text = [this.clock(ms), runs, `${number(stopped)} not running`, last].filter(Boolean).join("  |  ");
    this.readout.textContent = text;
    this.range.setAttribute("aria-valuetext", text);
  }

  // ---------------------------------------------------------------------------------------------- mouse and keyboard

  /** @param {number} y */
  rowAt(y) { return this.rows.find(row => y >= row.y && y < row.y + row.high); }
  /** @param {TaskRow | OtherRow} row @param {number} ms @param {number} [y] */
  about(row, ms, y = 0) { return row.task === undefined ? row.text(ms) : this.aboutTask(row.task, ms, y > row.y + row.bar + 2); }
  /** @param {MouseEvent} event */
  hover(event) {
    if (!this.svg) return;
    const px = this.px(event), y = event.clientY - this.svg.getBoundingClientRect().top, row = this.rowAt(y), ms = this.time(px);
    const inside = px >= GUTTER;
    this.stand(this.cursor, inside ? px : -9);
    if (this.start !== undefined && (this.dragged || Math.abs(px - this.start) > 5)) {
      this.dragged = true; this.tip.hide();
      this.shade.setAttribute("x", String(Math.min(this.start, px))); this.shade.setAttribute("width", String(Math.abs(px - this.start)));
      return;
    }
    if (row && inside && ms <= this.data.to) this.tip.show(event.clientX, event.clientY, this.about(row, ms, y));
    else if (!(event.target instanceof Element && event.target.classList.contains("life"))) this.tip.hide();
  }
  /** @param {MouseEvent | null} event the mouse is up; null: it has left */
  drag(event) {
    if (this.start !== undefined && this.dragged && event) {
      const px = this.px(event), [a, b] = [this.time(Math.min(this.start, px)), this.time(Math.max(this.start, px))];
      if (b - a >= 2) this.zoom(Math.max(0, a), Math.min(this.end(), b));
    }
    if (this.shade) this.shade.setAttribute("width", "0");
    this.start = undefined;
    if (this.late) { const data = this.late; this.late = null; this.set(data); }
    setTimeout(() => { this.dragged = false; }, 0);
  }
  /** @param {MouseEvent} event */
  click(event) {
    const row = this.svg && this.rowAt(event.clientY - this.svg.getBoundingClientRect().top);
    if (row && row.task === undefined && !this.dragged && this.px(event) >= GUTTER) row.click?.();
  }
  /** @param {number} t @param {number} ms */
  pick(t, ms) {
    const i = this.interval(t, ms) || this.lastOf(t);
    if (i) this.marked = i[5];
    this.draw();
    this.onTask(t, i);
  }
  /** @param {KeyboardEvent} event */
  key(event) {
    const { rows } = this, step = (this.to - this.from) / 60, ms = this.now(), chosen = rows[this.row];
    switch (event.key) {
      case "ArrowDown": this.row = Math.max(0, Math.min(rows.length - 1, this.row + 1)); break;
      case "ArrowUp": this.row = Math.max(0, this.row - 1); break;
      case "ArrowRight": this.at = Math.min(this.to, ms + step); break;
      case "ArrowLeft": this.at = Math.max(this.from, ms - step); break;
      case "Home": this.at = this.from; break;
      case "End": this.at = null; break;
      case "+": case "=": this.scale(.5); break;
      case "-": this.scale(2); break;
      case "0": this.zoom(0, this.end()); break;
      case "Enter":
        if (chosen && chosen.task !== undefined) this.pick(chosen.task, ms - .5); else chosen?.click?.();
        break;
      case "Escape": this.tip.hide(); return;
      default: return;
    }
    event.preventDefault();
    if (this.at !== null) this.range.value = String(Math.round((this.at - this.from) / (this.to - this.from) * 1000));
    this.point();
    const row = this.rows[this.row];
    if (!row) return;
    this.focus.setAttribute("y", String(row.y)); this.focus.setAttribute("height", String(row.high));
    this.focus.scrollIntoView({ block: "nearest" });
    const at = this.svg.getBoundingClientRect(), now = this.now() - .5;
    const text = this.about(row, now);
    this.tip.show(at.left + this.x(Math.max(this.from, now)), at.top + row.y, text);
    this.readout.textContent = text.replaceAll("\n", ", ");
  }
}
