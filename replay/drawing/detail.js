// One task in words: its movements with their reasons, and the lags of its copies.
import { button, count, element, endOf, make, number, scrolled, span, table, textWidth, visible } from "./basics.js";
/** @typedef {import("./chart.js").Chart} Chart */
/** @typedef {import("./page_data").Lags} Lags */

// The movements of task `t` with their reasons, and the lags of its copies, into `holder`.
/** @param {Chart} chart @param {number} t @param {import("./page_data").Interval | null} interval @param {HTMLElement} holder */
export const taskDetail = (chart, t, interval, holder) => {
  holder.replaceChildren();
  if (interval && interval[5] !== null) {
    const round = chart.roundOf(interval[5]), about = round ? ` at ${chart.clock(round.ms, true)}: ${visible(round.text)}` : "";
    const fact = element("p", holder, `Its state at that time goes back to the fact at offset ${interval[5]}${about}. `, "above");
    const wide = Math.max(2000, (chart.to - chart.from) / 4);
    const show = (/** @type {number} */ ms) => chart.zoom(Math.max(0, ms - wide / 2), Math.min(chart.end(), ms + wide / 2));
    if (round) button(fact, "show that round", () => show(round.ms));
  }
  /** @param {Lags} lags @returns {Lags} */
  const inSight = ([task, member, points]) => [task, member, points.filter(p => p[0] >= chart.from && p[0] <= chart.to)];
  const curves = (chart.lagsOf.get(t) || []).map(inSight).filter(c => c[2].length);
  if (curves.length) lagCurves(chart, curves, holder);
  const moves = chart.movesOf.get(t) || [];
  if (!moves.length) { element("p", holder, "No movement of it is known."); return; }
  const columns = ["decided", "took", "move*", "outcome", "restored", "fact", "why*"];
  const rows = table(scrolled(holder, "movements of the task"), columns);
  for (const m of moves) {
    const line = element("tr", rows);
    element("td", line, chart.clock(m.began, true));
    element("td", line, m.ended === null ? "under way" : m.ended === m.began ? "at once" : span(m.ended - m.began));
    element("td", line, `${chart.named(m.source)} → ${chart.named(m.destination)}`, "text");
    element("td", line, m.outcome);
    element("td", line, number(m.restored));
    element("td", line, m.offset === undefined ? "" : String(m.offset));
    element("td", line, visible(m.why), "text");
  }
};
/** @param {Chart} chart @param {Lags[]} curves @param {HTMLElement} holder */
const lagCurves = (chart, curves, holder) => {
  const names = Math.min(140, 10 + Math.max(...curves.map(c => textWidth(chart.named(c[1]), 11))));
  const w = Math.max(160, Math.min(560, innerWidth - 60 - names)), h = 130, points = curves.flatMap(c => c[2]);
  const most = Math.max(1, ...points.map(p => p[1])), times = points.map(p => p[0]);
  const first = Math.min(...times), last = Math.max(first + 1, ...times);
  element("p", holder, `Lag of its copies in records; at most ${number(most)}.`, "above");
  const svg = make("svg", { width: w + names, height: h + 22, role: "img", "aria-label": "lag of its copies over time" }, holder);
  make("line", { x1: 0, x2: w, y1: h, y2: h, class: "grid" }, svg);
  /** @param {[number, number]} p */
  const place = ([ms, lag]) => [(ms - first) / Math.max(1, last - first) * (w - 2), h - lag / most * (h - 22)];
  for (const [, member, own] of curves) {
    const colour = chart.colour(member), name = chart.named(member);
    let before = own[0];
    for (const p of own) {
      const [x, y] = place(p), [x1, y1] = place(before);
      // a pause in the reports is a pause in the curve
      if (p !== before && p[0] - before[0] < 90000) make("line", { x1, y1, x2: x, y2: y, stroke: colour, "stroke-width": 1.8 }, svg);
      const about = `copy on ${name}: ${count(p[1], "record")} behind at ${chart.clock(p[0], true)}`;
      chart.tip.on(make("circle", { cx: x, cy: y, r: 2.2, fill: colour }, svg), () => about);
      before = p;
    }
    const [x, y] = place(before);
    make("text", { x: x + 5, y: y + 3, class: "name" }, svg, endOf(name, names - 8, 11));
  }
  make("text", { x: 0, y: h + 15 }, svg, chart.clock(first));
  make("text", { x: w, y: h + 15, "text-anchor": "end" }, svg, chart.clock(last));
};
