// The list of all groups: filtered, sorted, with the lag of the last hour.
import { clockOf, count, element, make, number, scrolled, table, visible } from "./basics.js";
import { PHASES, dayOf, link, redraw, textCell, to, troubleList } from "./parts.js";
/** @typedef {import("./documents").Listed} Listed */
/** @typedef {{ name: string, of: (each: Listed) => number | string | null, isText?: boolean }} Column */

const stateOf = (/** @type {Listed} */ each) => PHASES[each.phase] + (each.level > 2 ? ", alarm" : each.level === 2 ? ", warning" : "");
/** @param {Listed} each */
const ledOf = each => {
  const since = each.led_since_ms, day = since === null ? "" : dayOf(since), today = new Date().toISOString().slice(0, 10);
  const who = each.phase === "shadowing" ? "its own leader" : each.led_by || "nobody";
  const how = each.phase === "shadowing" ? "watched" : "here";
  return since === null ? who : `${who}, ${how} since ${day.startsWith(today) ? clockOf(since) : day.slice(0, 16)}`;
};
/** @type {Column[]} */
const COLUMNS = [
  { name: "group", of: each => each.group, isText: true }, { name: "state", of: stateOf, isText: true },
  { name: "led by", of: ledOf, isText: true }, { name: "members", of: each => each.members }, { name: "tasks", of: each => each.tasks },
  { name: "moving", of: each => each.moving }, { name: "records/s", of: each => each.rate }, { name: "lag", of: each => each.lag },
];
const LINE = "lag, last hour", WRONG = "what is wrong";

// A line of the lag, from 0 to the greatest of the hour. Minutes of which nothing is known are left out.
/** @param {Element} parent @param {Listed["lags"]} lags */
const drawLine = (parent, lags) => {
  const known = lags.filter(each => each !== null), most = Math.max(1, ...known);
  if (!known.length) { element("span", parent, "unknown", "key"); return; }
  const range = `${number(Math.min(...known))} to ${number(Math.max(...known))}`;
  const text = `lag of the last hour: ${range}, now ${number(known[known.length - 1])}`;
  const svg = make("svg", { viewBox: "0 0 120 20", width: 120, height: 20, class: "hour", role: "img", "aria-label": text }, parent);
  make("title", {}, svg, text);
  let path = "", before = false;
  lags.forEach((each, minute) => {
    const y = each === null ? "" : (18.5 - 17 * each / most).toFixed(1);
    if (y) path += `${before ? "L" : `M${2 * minute} ${y}L`}${2 * minute + 1} ${y}`;
    before = y !== "";
  });
  make("path", { d: "M0 19.5H120", class: "ground" }, svg);
  make("path", { d: path }, svg);
};

export class GroupList {
  filter = ""; column = NaN; isDown = false;
  /** @type {Listed[]} */ groups = [];
  /** @param {HTMLElement} parent */
  constructor(parent) {
    const section = element("section", parent, undefined, "card"), bar = element("div", section, undefined, "filter");
    const field = element("input", bar);
    field.type = "search"; field.placeholder = "filter: name, state, trouble"; field.setAttribute("aria-label", "filter the groups");
    field.addEventListener("input", () => { this.filter = field.value; this.draw(); });
    this.shown = element("span", bar, undefined, "key"); this.shown.setAttribute("role", "status");
    const names = [...COLUMNS.map(each => each.isText ? `${each.name}*` : each.name), `${LINE}*`, `${WRONG}*`];
    this.rows = table(scrolled(section, "groups"), names, "list groups");
    this.heads = [...section.querySelectorAll("th")];
    this.heads.forEach((head, at) => {
      if (head.textContent === LINE) return;
      const press = element("button", null, head.textContent ?? "");
      press.type = "button"; press.addEventListener("click", () => this.sort(at));
      head.replaceChildren(press);
    });
    this.sort(-1);
  }
  /** @param {number} at of COLUMNS; of no column: the worst first */
  sort(at) {
    const by = at < COLUMNS.length ? at : -1;
    this.isDown = by === this.column ? !this.isDown : by >= 0 && !COLUMNS[by].isText;
    this.column = by;
    this.heads.forEach((head, index) => {
      const isBy = by >= 0 ? index === by : head.textContent === WRONG;
      if (isBy) head.setAttribute("aria-sort", this.isDown || by < 0 ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    });
    this.draw();
  }
  /** @param {Listed[]} groups */
  set(groups) { this.groups = groups; this.draw(); }
  chosen() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean), column = COLUMNS[this.column], turn = this.isDown ? -1 : 1;
    const found = this.groups.filter(each => {
      const text = [each.group, stateOf(each), ledOf(each), ...each.troubles.map(one => one.text)].join(" ").toLowerCase();
      return words.every(word => text.includes(word));
    });
    if (!column) return this.isDown ? found.reverse() : found;
    return found.sort((one, other) => {
      const a = column.of(one), b = column.of(other);
      if (a === null || b === null) return +(a === null) - +(b === null); // unknown is last
      return turn * (typeof a === "string" ? a.localeCompare(String(b), "en", { numeric: true }) : a - Number(b));
    });
  }
  draw() {
    const chosen = this.chosen(), all = this.groups.length;
    const shown = chosen.length === all ? "" : `${number(chosen.length)} of ${count(all, "group")}`;
    if (this.shown.textContent !== shown) this.shown.textContent = shown;
    redraw(this.rows, chosen.map(each => ({ ...each, offset: 0, append_ms: 0 })), rows => {
      for (const each of chosen) {
        const row = element("tr", rows);
        COLUMNS.forEach(({ name, of, isText }, at) => {
          const value = of(each), cell = isText ? textCell(row) : element("td", row);
          cell.dataset.name = name;
          if (!at) link(cell, each.group, to("g", each.group), "name");
          else if (typeof value === "string") element("span", cell, value, at === 1 && each.level >= 2 ? `badge b${each.level}` : "");
          else cell.append(value === null ? "–" : number(value));
        });
        const line = textCell(row);
        line.dataset.name = LINE;
        drawLine(line, each.lags);
        const wrong = textCell(row);
        if (each.troubles.length) troubleList(wrong, each.troubles.slice(0, 3), each.group); else element("span", wrong, "fine", "word l0");
      }
      if (chosen.length) return;
      const text = all ? "No group has these words." : "This worker leads no group yet.";
      element("td", element("tr", rows), text, "text").colSpan = COLUMNS.length + 2;
    });
  }
}
