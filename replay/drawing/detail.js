// One task in words: its movements with their reasons, and the lags of its copies.
import { count, element, endOf, make, number, scrolled, span, textWidth, visible } from "./basics.js";

// The movements of task `t` with their reasons, and the lags of its copies, into `holder`.
export const taskDetail = (chart, t, interval, holder) => {
  const { data } = chart;
  holder.replaceChildren();
  if (interval) {
    const round = chart.roundOf(interval[5]), at = round ? ` at ${chart.clock(round.ms, true)}` : "";
    const fact = element("p", holder, `Its state at that time goes back to the fact at offset ${interval[5]}${at}${round ? `: ${visible(round.text)}` : ""}. `, "above");
    if (round) { const go = element("button", fact, "show that round"); go.type = "button"; go.addEventListener("click", () => { const wide = Math.max(2000, (chart.to - chart.from) / 4); chart.zoom(Math.max(0, round.ms - wide / 2), Math.min(chart.end(), round.ms + wide / 2)); }); }
  }
  const curves = (chart.lagsOf.get(t) || []).map(c => [c[0], c[1], c[2].filter(p => p[0] >= chart.from && p[0] <= chart.to)]).filter(c => c[2].length);
  if (curves.length) lagCurves(chart, curves, holder);
  const moves = chart.movesOf.get(t) || [];
  if (!moves.length) { element("p", holder, "No movement of it is known."); return; }
  const table = element("table", scrolled(holder, "movements of the task")), head = element("tr", element("thead", table)), rows = element("tbody", table);
  for (const name of ["decided", "took", "move", "outcome", "restored", "fact", "why"]) element("th", head, name, name === "why" || name === "move" ? "text" : "").scope = "col";
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
const lagCurves = (chart, curves, holder) => {
  const names = Math.min(140, 10 + Math.max(...curves.map(c => textWidth(chart.named(c[1]), 11))));
  const w = Math.max(160, Math.min(560, innerWidth - 60 - names)), h = 130, svg = make("svg", { width: w + names, height: h + 22, role: "img", "aria-label": "lag of its copies over time" });
  const most = Math.max(1, ...curves.flatMap(c => c[2].map(p => p[1])));
  const first = Math.min(...curves.flatMap(c => c[2].map(p => p[0]))), last = Math.max(first + 1, ...curves.flatMap(c => c[2].map(p => p[0])));
  element("p", holder, `Lag of its copies in records; at most ${number(most)}.`, "above");
  make("line", { x1: 0, x2: w, y1: h, y2: h, class: "grid" }, svg);
  for (const c of curves) {
    const px = p => (p[0] - first) / Math.max(1, last - first) * (w - 2), py = p => h - p[1] / most * (h - 22);
    c[2].forEach((p, i) => { // a pause in the reports is a pause in the curve
      const before = c[2][i - 1];
      if (before && p[0] - before[0] < 90000) make("line", { x1: px(before), y1: py(before), x2: px(p), y2: py(p), stroke: chart.colour(c[1]), "stroke-width": 1.8 }, svg);
      chart.tip.on(make("circle", { cx: px(p), cy: py(p), r: 2.2, fill: chart.colour(c[1]) }, svg), () => `copy on ${chart.named(c[1])}: ${count(p[1], "record")} behind at ${chart.clock(p[0], true)}`);
    });
    const end = c[2][c[2].length - 1];
    make("text", { x: px(end) + 5, y: py(end) + 3, class: "name" }, svg, endOf(chart.named(c[1]), names - 8, 11));
  }
  make("text", { x: 0, y: h + 15 }, svg, chart.clock(first));
  make("text", { x: w, y: h + 15, "text-anchor": "end" }, svg, chart.clock(last));
  holder.appendChild(svg);
};
