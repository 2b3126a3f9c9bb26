"use strict";
// Draws the history in #data. Times are milliseconds since data.from; members and tasks are indices.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = id => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const GUTTER = 86, RIGHT = 16;
  const MOST_MEMBERS = 200, MOST_KEYS = 60; // drawn as rows; named in the legend
  const CONDITION = ["running", "starting", "silent", "nobody"];
  const colour = m => m < 0 ? "none" : data.colours[m];

  let from = 0, to = Math.max(1, data.to), chosen = -1, width = 1200;

  // Small helpers
  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const element = (name, parent, text, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    if (parent) parent.appendChild(node);
    return node;
  };
  const number = n => n === null || n === undefined ? "" : n.toLocaleString("en-US");
  const clock = (ms, fine) => new Date(data.from + ms).toISOString().slice(11, fine ? 23 : 19);
  const span = ms => ms < 1000 ? `${Math.round(ms)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : ms < 3600000
    ? `${Math.floor(ms / 60000)} min ${String(Math.floor(ms / 1000) % 60).padStart(2, "0")} s`
    : `${Math.floor(ms / 3600000)} h ${String(Math.floor(ms / 60000) % 60).padStart(2, "0")} min`;
  const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many || one + "s"}`;
  const x = ms => GUTTER + (ms - from) / (to - from) * (width - GUTTER - RIGHT);
  const time = px => from + (px - GUTTER) / (width - GUTTER - RIGHT) * (to - from);
  const clipped = (since, until) => {
    if (until <= from || since >= to) return null;
    const left = x(Math.max(since, from)), right = x(Math.min(until, to));
    return [left, Math.max(right - left, .7)];
  };
  const named = m => m < 0 ? "nobody" : data.members[m];
  const pen = document.createElement("canvas").getContext("2d");
  const textWidth = (text, px) => { pen.font = `600 ${px}px system-ui, "Segoe UI", Roboto, sans-serif`; return pen.measureText(text).width; };
  const startOf = (text, room, px) => { // as much of the text as fits into `room` pixels
    if (textWidth(text, px) <= room) return text;
    let kept = text.length - 1;
    while (kept > 2 && textWidth(text.slice(0, kept) + "…", px) > room) kept -= 1;
    return kept > 2 ? text.slice(0, kept) + "…" : "";
  };
  const endOf = (text, room, px) => { // ids of one application differ at their end
    let first = 0;
    while (first < text.length - 1 && textWidth((first ? "…" : "") + text.slice(first), px) > room) first += 1;
    return (first ? "…" : "") + text.slice(first);
  };
  const faded = m => chosen >= 0 && m !== chosen ? " dim" : "";
  const group = (list, key) => {
    const found = new Map();
    for (const item of list) { const k = item[key]; if (!found.has(k)) found.set(k, []); found.get(k).push(item); }
    return found;
  };

  // What is derived once
  const intervals = group(data.intervals, 0), copiesOf = group(data.copies, 0), movesOf = group(data.moves, "task"), lagsOf = group(data.lags, 0);
  const steps = (list, sinceAt, untilAt) => { // +1/-1 events -> [[ms, level]...]
    const events = [];
    for (const item of list) { events.push([item[sinceAt], 1]); events.push([item[untilAt], -1]); }
    events.sort((a, b) => a[0] - b[0]);
    const curve = []; let level = 0;
    for (const [ms, change] of events) {
      level += change;
      if (curve.length && curve[curve.length - 1][0] === ms) curve[curve.length - 1][1] = level; else curve.push([ms, level]);
    }
    return curve;
  };
  const stoppedCurve = steps(data.intervals.filter(i => i[2] > 0), 3, 4);
  const activeCurves = data.members.map((_, m) => steps(data.intervals.filter(i => i[1] === m && i[2] < 2), 3, 4));
  const mostActive = Math.max(1, ...activeCurves.flatMap(c => c.map(p => p[1])));

  // Tooltip
  const tip = byId("tip");
  const showTip = (event, text) => {
    tip.textContent = text; tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (event.clientY + 20 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16) + "px";
  };
  const onHover = (node, text) => { node.addEventListener("mousemove", event => showTip(event, text())); node.addEventListener("mouseleave", () => { tip.hidden = true; }); };

  const area = (curve, top, height, most, closed) => {
    let d = "", y = top + height, last = 0;
    for (const [ms, level] of curve) {
      if (ms > to) break;
      if (ms < from) { last = level; continue; }
      if (!d) d = `M${x(from)},${top + height}V${(y = top + height - last / most * height)}`;
      d += `H${x(ms)}V${(y = top + height - level / most * height)}`;
      last = level;
    }
    if (!d) { if (!last) return ""; d = `M${x(from)},${top + height}V${top + height - last / most * height}`; }
    return d + `H${x(Math.min(to, data.to))}` + (closed ? `V${top + height}Z` : "");
  };

  const hatches = svg => {
    const defs = make("defs", {}, svg);
    data.members.forEach((_, m) => {
      const pattern = make("pattern", { id: `h${m}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
      make("rect", { width: 5, height: 5, fill: colour(m), "fill-opacity": .22 }, pattern);
      make("rect", { width: 2.4, height: 5, fill: colour(m) }, pattern);
    });
  };

  const tickStep = () => {
    const wanted = (to - from) / Math.max(2, (width - GUTTER) / (width < 700 && to - from > 1e4 ? 80 : 110));
    const nice = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];
    return nice.find(s => s >= wanted) || Math.ceil(wanted / 864e5) * 864e5;
  };
  const ticks = () => {
    const step = tickStep(), found = [];
    for (let ms = Math.ceil((data.from + from) / step) * step - data.from; ms <= to; ms += step) found.push(ms);
    return found;
  };
  const backdrop = (svg, height) => {
    data.windows.forEach((w, i) => {
      const at = clipped(w.from, w.to);
      if (at && i % 2 === 0) make("rect", { x: at[0], width: at[1], y: 0, height, class: "bandfill" }, svg);
    });
    for (const ms of ticks()) make("line", { x1: x(ms), x2: x(ms), y1: 0, y2: height, class: "grid" }, svg);
  };

  const drawTop = () => {
    const holder = byId("top");
    holder.replaceChildren();
    const banded = data.windows.length > 0, height = (banded ? 18 : 4) + 34;
    const svg = make("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
    holder.appendChild(svg);
    backdrop(svg, height);
    if (banded) for (const w of data.windows) {
      const at = clipped(w.from, w.to);
      if (!at) continue;
      make("line", { x1: at[0], x2: at[0], y1: 2, y2: height, class: "grid" }, svg);
      const label = w.label.replaceAll("_", " ");
      const text = make("text", { x: at[0] + 5, y: 13, class: "band" }, svg, startOf(label, at[1] - 7, 11));
      onHover(text, () => `${label}\n${clock(w.from)} to ${clock(w.to)}, ${span(w.to - w.from)}\nclick to look at it alone`);
      text.addEventListener("click", () => zoom(w.from, w.to));
    }
    const y = banded ? 19 : 5;
    make("text", { x: GUTTER - 8, y: y + 9, "text-anchor": "end", class: "head" }, svg, "rounds");
    for (const round of data.rounds) {
      if (round.ms < from || round.ms > to) continue;
      const mark = make("path", { d: `M${x(round.ms)},${y + 11}l-3.4,-9.4h6.8z`, fill: data.cause_colours[round.cause] || "var(--faint)" }, svg);
      onHover(mark, () => `generation ${round.generation} at ${clock(round.ms, true)} (offset ${round.offset})\n${round.text}\n${count(round.moves, "move")}, ${count(round.members, "member")} told`);
    }
    for (const ms of ticks()) if (x(ms) < width - 62) make("text", { x: x(ms) + 3, y: height - 5 }, svg, tickStep() < 1000 ? clock(ms, true) : clock(ms));
  };

  const rowHeight = rows => rows <= 45 ? 21 : rows <= 130 ? 14 : rows <= 420 ? 8 : 5;

  const shownTasks = () => {
    const wanted = byId("filter").value.trim(), moved = byId("moved").checked;
    return data.tasks.map((_, t) => t).filter(t => (!wanted || data.tasks[t].startsWith(wanted))
      && (!moved || (movesOf.get(t) || []).some(m => m.source >= 0) || (intervals.get(t) || []).some((i, first) => i[2] > 0 && first > 0 && i[4] > from && i[3] < to)));
  };

  const aboutInterval = i => `${data.tasks[i[0]]}: ${CONDITION[i[2]] === "nobody" ? "nobody has it" : CONDITION[i[2]] === "silent" ? `${named(i[1])} was not heard of any more`
    : CONDITION[i[2]] === "starting" ? `granted to ${named(i[1])}, which restores or waits first` : `runs on ${named(i[1])}`}\n${clock(i[3], true)} to ${clock(i[4], true)}, ${span(i[4] - i[3])}\nsince generation ${i[6]}, offset ${i[5]}`;
  const aboutCopy = c => `${data.tasks[c[0]]}: ${c[2] ? "warm-up" : "standby"} on ${named(c[1])}\n${clock(c[3], true)} to ${clock(c[4], true)}, ${span(c[4] - c[3])}${c[2] ? (c[5] === null ? "\nnot caught up" : `\ncaught up after ${span(c[5] - c[3])}`) : ""}`;

  const drawBody = () => {
    const holder = byId("body");
    holder.replaceChildren();
    const rows = shownTasks(), high = rowHeight(rows.length), lives = group(data.lives, "member");
    const lifeHigh = data.members.length <= 12 ? 25 : 15;
    const shownMembers = data.members.map((_, m) => m).slice(0, MOST_MEMBERS);
    const CURVE = 40;
    let y = 8;
    const height = y + 14 + shownMembers.length * lifeHigh + 14 + 2 * (CURVE + 18) + 20 + rows.length * high + (new Set(rows.map(t => data.tasks[t].split("_")[0])).size) * 9 + 8;
    const svg = make("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
    hatches(svg);
    backdrop(svg, height);

    // Members: a lifeline as high as it has active tasks
    make("text", { x: 10, y: y + 8, class: "head" }, svg, shownMembers.length === data.members.length ? "members" : `${number(shownMembers.length)} of ${count(data.members.length, "member")}`);
    y += 14;
    for (const m of shownMembers) {
      const line = make("g", { class: faded(m).trim() }, svg);
      const name = make("text", { x: GUTTER - 8, y: y + lifeHigh - (lifeHigh > 15 ? 6 : 3), "text-anchor": "end", class: "name life" }, line, endOf(data.members[m], GUTTER - 12, 11));
      onHover(name, () => `${data.members[m]}\nclick to see it alone`);
      name.addEventListener("click", () => choose(m));
      for (const life of lives.get(m) || []) {
        const at = clipped(life.from, life.to === null ? data.to : life.to);
        if (!at) continue;
        const base = make("rect", { x: at[0], width: at[1], y: y + lifeHigh - 5, height: 3, rx: 1.5, fill: colour(m) }, line);
        onHover(base, () => `${data.members[m]}, incarnation ${life.incarnation}, capacity ${life.capacity}\njoined ${clock(life.from, true)}${life.to === null ? "" : `\n${life.how} at ${clock(life.to, true)}${life.silent === null ? "" : `, silent for ${span(life.to - life.silent)}`}`}`);
        if (life.silent !== null && life.to !== null) {
          const quiet = clipped(life.silent, life.to);
          if (quiet) make("rect", { x: quiet[0], width: quiet[1], y: y + lifeHigh - 5, height: 3, class: "silent" }, line);
        }
        if (life.to !== null && life.to >= from && life.to <= to) make("text", { x: x(life.to) - 4, y: y + lifeHigh - 1, fill: "var(--alarm)", style: "fill:var(--alarm);font-weight:700" }, line, "×");
        if (life.from >= from && life.from <= to) make("path", { d: `M${x(life.from)},${y + lifeHigh - 8}v9`, stroke: colour(m), "stroke-width": 2 }, line);
      }
      const d = area(activeCurves[m], y + 2, lifeHigh - 7, mostActive, true);
      if (d) {
        const shape = make("path", { d, fill: colour(m), "fill-opacity": .55 }, line);
        shape.addEventListener("mousemove", event => {
          const ms = time(event.offsetX); let level = 0;
          for (const [at, n] of activeCurves[m]) { if (at > ms) break; level = n; }
          showTip(event, `${data.members[m]} at ${clock(ms)}: ${count(level, "active task")}`);
        });
        shape.addEventListener("mouseleave", () => { tip.hidden = true; });
      }
      y += lifeHigh;
    }
    y += 14;

    // Two curves over the whole group
    for (const [label, curve, css, about] of [["not running", stoppedCurve, "alarmline", n => `${count(n, "task")} without a running owner`], ["imbalance", data.imbalance, "balanceline", n => `${count(n, "task")} outside the members' shares`]]) {
      const inside = curve.filter(p => p[0] >= from && p[0] <= to).map(p => p[1]);
      const before = curve.filter(p => p[0] < from).map(p => p[1]).pop() || 0;
      const most = Math.max(1, before, ...inside);
      make("text", { x: GUTTER - 8, y: y + 14, "text-anchor": "end", class: "head" }, svg, label);
      make("text", { x: GUTTER - 8, y: y + 28, "text-anchor": "end" }, svg, `most ${most === 1 && !inside.includes(1) && before !== 1 ? 0 : number(most)}`);
      make("line", { x1: GUTTER, x2: width - RIGHT, y1: y + CURVE, y2: y + CURVE, class: "grid" }, svg);
      const d = area(curve, y, CURVE, most, true);
      if (d) make("path", { d, class: css }, svg);
      const cover = make("rect", { x: GUTTER, width: width - GUTTER - RIGHT, y, height: CURVE, class: "hit" }, svg);
      cover.addEventListener("mousemove", event => {
        const ms = time(event.offsetX); let level = 0;
        for (const [at, n] of curve) { if (at > ms) break; level = n; }
        showTip(event, `${clock(ms)}: ${about(level)}`);
      });
      cover.addEventListener("mouseleave", () => { tip.hidden = true; });
      y += CURVE + 18;
    }

    // Tasks
    make("text", { x: 10, y: y + 8, class: "head" }, svg, rows.length === data.tasks.length ? "tasks" : `${number(rows.length)} of ${count(data.tasks.length, "task")}`);
    y += 20;
    let part = null, index = 0, labelled = y - 13;
    const bar = Math.max(3, high >= 14 ? high - 8 : high - 2), strip = high >= 14 ? 4 : high >= 8 ? 2 : 0;
    for (const t of rows) {
      const sub = data.tasks[t].split("_")[0];
      if (part !== null && sub !== part) y += 9;
      if (sub !== part) index = 0;
      part = sub;
      const row = make("g", { class: "row" }, svg);
      make("rect", { x: 0, width, y, height: high, class: "hit" }, row);
      const base = high >= 11 ? y + Math.min(high, 15) - 3 : y + high / 2 + 4;
      if ((high >= 11 || index % 10 === 0) && base - labelled >= 12) {
        make("text", { x: GUTTER - 8, y: base, "text-anchor": "end", class: "name" }, row, data.tasks[t]);
        labelled = base;
      }
      index += 1;
      for (const i of intervals.get(t) || []) {
        const at = clipped(i[3], i[4]);
        if (!at) continue;
        let shape;
        if (i[2] === 0) {
          shape = make("rect", { x: at[0], width: at[1], y: y + 2, height: bar, rx: bar > 8 ? 1.5 : 0, fill: colour(i[1]), class: faded(i[1]).trim() }, row);
          if (high >= 18 && at[1] > 9 + textWidth(named(i[1]), 10)) make("text", { x: at[0] + 5, y: y + bar - 2, class: "in" + faded(i[1]) }, row, named(i[1]));
        } else if (i[2] === 1) shape = make("rect", { x: at[0], width: at[1], y: y + 2, height: bar, fill: `url(#h${i[1]})`, class: faded(i[1]).trim() }, row);
        else if (i[2] === 2) shape = make("rect", { x: at[0], width: at[1], y: y + 2, height: bar, class: "silent" }, row);
        else {
          make("rect", { x: at[0], width: at[1], y: y + 2, height: bar, class: "gap" }, row);
          make("rect", { x: at[0], width: at[1], y: y + 2 + bar / 2 - .8, height: 1.6, class: "nobody" }, row);
          shape = make("rect", { x: at[0] - 1, width: at[1] + 2, y: y + 1, height: bar + 2, class: "hit" }, row);
        }
        onHover(shape, () => aboutInterval(i));
      }
      if (strip) {
        const standbys = byId("copies").checked;
        for (const c of copiesOf.get(t) || []) {
          const at = clipped(c[3], c[4]);
          if (!at || (!c[2] && !standbys)) continue;
          const shape = c[2] ? make("rect", { x: at[0], width: at[1], y: y + bar + 2.6, height: strip, fill: `url(#h${c[1]})`, class: faded(c[1]).trim() }, row)
            : make("rect", { x: at[0], width: at[1], y: y + bar + 3 + (strip > 2 ? 1 : 0), height: 1.6, fill: colour(c[1]), "fill-opacity": .55, class: faded(c[1]).trim() }, row);
          onHover(shape, () => aboutCopy(c));
        }
      }
      row.addEventListener("click", () => { if (!dragged) detail(t); });
      y += high;
    }
    const cursor = make("line", { y1: 0, y2: height, x1: -9, x2: -9, class: "cursor" }, svg);
    svg.addEventListener("mousemove", event => { const at = event.offsetX; cursor.setAttribute("x1", at < GUTTER ? -9 : at); cursor.setAttribute("x2", at < GUTTER ? -9 : at); });
    holder.appendChild(svg);
    drag(svg, height);
  };

  // Drag to zoom
  let dragged = false;
  const drag = (svg, height) => {
    let start = null, shade = null;
    svg.addEventListener("mousedown", event => { if (event.offsetX >= GUTTER && event.button === 0) { start = event.offsetX; dragged = false; } });
    svg.addEventListener("mousemove", event => {
      if (start === null || (Math.abs(event.offsetX - start) < 5 && !shade)) return;
      dragged = true; tip.hidden = true;
      shade = shade || make("rect", { y: 0, height, class: "select" }, svg);
      shade.setAttribute("x", Math.min(start, event.offsetX));
      shade.setAttribute("width", Math.abs(event.offsetX - start));
    });
    const end = event => {
      if (start !== null && dragged) {
        const [a, b] = [time(Math.min(start, event.offsetX)), time(Math.max(start, event.offsetX))];
        if (b - a >= 2) zoom(Math.max(0, a), Math.min(data.to, b));
        setTimeout(() => { dragged = false; }, 0);
      }
      start = null;
      if (shade) { shade.remove(); shade = null; }
    };
    svg.addEventListener("mouseup", end);
    svg.addEventListener("mouseleave", end);
    svg.addEventListener("dblclick", () => zoom(0, Math.max(1, data.to)));
  };
  const zoom = (a, b) => {
    from = a; to = Math.max(a + 1, b);
    byId("whole").disabled = from === 0 && to >= data.to;
    draw();
  };

  // One task: its moves and the lags of its copies
  const detail = t => {
    byId("detail").hidden = false;
    byId("detail-title").textContent = `task ${data.tasks[t]}, ${clock(from)} to ${clock(Math.min(to, data.to))}`;
    const holder = byId("detail-body");
    holder.replaceChildren();
    const curves = (lagsOf.get(t) || []).map(c => [c[0], c[1], c[2].filter(p => p[0] >= from && p[0] <= to)]).filter(c => c[2].length);
    if (curves.length) {
      const names = Math.min(140, 10 + Math.max(...curves.map(c => textWidth(named(c[1]), 11))));
      const w = Math.max(160, Math.min(560, innerWidth - 60 - names)), h = 150, svg = make("svg", { width: w + names, height: h + 36 });
      const most = Math.max(1, ...curves.flatMap(c => c[2].map(p => p[1])));
      const first = Math.min(...curves.flatMap(c => c[2].map(p => p[0]))), last = Math.max(first + 1, ...curves.flatMap(c => c[2].map(p => p[0])));
      element("p", holder, `Lag of its copies in records; at most ${number(most)}.`, "above");
      make("line", { x1: 0, x2: w, y1: h, y2: h, class: "grid" }, svg);
      for (const c of curves) {
        const px = p => (p[0] - first) / Math.max(1, last - first) * (w - 2), py = p => h - p[1] / most * (h - 22);
        c[2].forEach((p, i) => { // a pause in the reports is a pause in the curve
          const before = c[2][i - 1];
          if (before && p[0] - before[0] < 90000) make("line", { x1: px(before), y1: py(before), x2: px(p), y2: py(p), stroke: colour(c[1]), "stroke-width": 1.8 }, svg);
          onHover(make("circle", { cx: px(p), cy: py(p), r: 2.2, fill: colour(c[1]) }, svg), () => `copy on ${named(c[1])}: ${count(p[1], "record")} behind at ${clock(p[0], true)}`);
        });
        const end = c[2][c[2].length - 1];
        make("text", { x: px(end) + 5, y: py(end) + 3, class: "name" }, svg, endOf(named(c[1]), names - 8, 11));
      }
      make("text", { x: 0, y: h + 15 }, svg, clock(first));
      make("text", { x: w, y: h + 15, "text-anchor": "end" }, svg, clock(last));
      holder.appendChild(svg);
    }
    const moves = movesOf.get(t) || [];
    const table = element("table", holder), head = element("tr", table);
    for (const name of ["decided", "took", "move", "outcome", "restored", "why"]) element("th", head, name, name === "why" || name === "move" ? "text" : "");
    for (const m of moves) {
      const line = element("tr", table);
      element("td", line, clock(m.began, true));
      element("td", line, m.ended === null ? "under way" : m.ended === m.began ? "at once" : span(m.ended - m.began));
      element("td", line, `${named(m.source)} → ${named(m.destination)}`, "text");
      element("td", line, m.outcome);
      element("td", line, number(m.restored));
      element("td", line, m.why, "text");
    }
    if (!moves.length) element("p", holder, "It never moved.");
  };

  // Around the picture
  const choose = m => {
    chosen = chosen === m ? -1 : m;
    byId("legend").querySelectorAll("button").forEach((b, i) => b.classList.toggle("on", i === chosen));
    draw();
  };
  const legend = () => {
    const holder = byId("legend");
    data.members.slice(0, MOST_KEYS).forEach((name, m) => {
      const button = element("button", holder);
      button.type = "button";
      button.title = name;
      make("rect", { width: 12, height: 12, rx: 3, fill: colour(m) }, button.appendChild(make("svg", { width: 12, height: 12 })));
      button.appendChild(document.createTextNode(endOf(name, 160, 12.5)));
      button.addEventListener("click", () => choose(m));
    });
    if (data.members.length > MOST_KEYS) element("span", holder, `and ${count(data.members.length - MOST_KEYS, "more member")}`, "key");
    const key = (text, paint) => {
      const box = element("span", holder, undefined, "key");
      const svg = make("svg", { width: 22, height: 12 });
      paint(svg);
      box.appendChild(svg);
      box.appendChild(document.createTextNode(text));
    };
    key("warm-up", svg => { hatches(svg); make("rect", { width: 22, height: 5, y: 4, fill: "url(#h0)" }, svg); });
    key("standby", svg => make("rect", { width: 22, height: 2, y: 5, fill: "var(--soft)" }, svg));
    if (data.intervals.some(i => i[2] === 1)) key("granted, starting", svg => make("rect", { width: 22, height: 12, fill: "url(#h0)" }, svg));
    key("owner silent", svg => make("rect", { width: 22, height: 12, class: "silent" }, svg));
    key("nobody", svg => { make("rect", { width: 22, height: 12, class: "gap" }, svg); make("rect", { width: 22, height: 1.6, y: 5.2, class: "nobody" }, svg); });
  };
  const frame = () => {
    byId("title").textContent = data.title;
    byId("subtitle").textContent = data.subtitle;
    byId("note").textContent = data.note;
    byId("caption").textContent = data.caption;
    for (const [value, label] of data.cards) { const card = element("div", byId("cards"), undefined, "card"); element("b", card, value); element("span", card, label); }
    if (data.totals.length > 1) {
      byId("cards").className = "beside";
      const table = element("table", byId("windows")), head = element("tr", table);
      for (const name of data.columns) element("th", head, name);
      data.totals.forEach((row, i) => {
        const line = element("tr", table, undefined, "go");
        for (const cell of row) element("td", line, typeof cell === "number" ? number(cell) : cell);
        line.addEventListener("click", () => zoom(data.windows[i].from, data.windows[i].to));
      });
    }
  };
  const draw = () => {
    width = Math.max(240, byId("chart").clientWidth);
    tip.hidden = true;
    drawTop();
    drawBody();
  };
  frame();
  legend();
  byId("moved").checked = data.tasks.length > 300; // more rows than anybody reads
  byId("filter").addEventListener("input", draw);
  byId("moved").addEventListener("change", draw);
  byId("copies").addEventListener("change", draw);
  byId("whole").addEventListener("click", () => zoom(0, Math.max(1, data.to)));
  byId("close").addEventListener("click", () => { byId("detail").hidden = true; });
  document.addEventListener("keydown", event => { if (event.key === "Escape") byId("detail").hidden = true; });
  addEventListener("resize", draw);
  draw();
})();
