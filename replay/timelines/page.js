// The timeline page: the history in #data, as one picture (chart.js) with its totals above and one task in words below.
import { byId, element, number, scrolled, table, visible } from "./basics.js";
import { Chart } from "./chart.js";
import { taskDetail } from "./detail.js";

/** @type {import("./page_data").PageData} */
const data = JSON.parse(byId("data").textContent);

for (const part of /** @type {const} */ (["title", "subtitle", "note", "caption"])) byId(part).textContent = visible(data[part]);
for (const [value, label] of data.cards) {
  const card = element("div", byId("cards"), undefined, "card");
  element("b", card, value); element("span", card, label);
}

const close = () => { byId("detail").hidden = true; chart.mark(null); };
const chart = new Chart(byId("picture"), {
  onTask: (t, interval) => {
    byId("detail").hidden = false;
    byId("detail-title").textContent = `task ${chart.tasks[t]}, ${chart.clock(chart.from)} to ${chart.clock(Math.min(chart.to, data.to))}`;
    taskDetail(chart, t, interval, byId("detail-body"));
  },
});
chart.set(data);
if (data.totals.length > 1) {
  byId("cards").className = "beside";
  const rows = table(scrolled(byId("windows"), "incidents and actions"), data.columns);
  data.totals.forEach((row, i) => {
    const line = element("tr", rows, undefined, "go");
    for (const cell of row) element("td", line, typeof cell === "number" ? number(cell) : visible(cell));
    const show = () => chart.zoom(data.windows[i].from, data.windows[i].to);
    line.tabIndex = 0;
    line.addEventListener("click", show);
    line.addEventListener("keydown", event => { if (event.key === "Enter") show(); });
  });
}
for (const [heading, lines] of data.stories || []) {
  const story = element("article", byId("stories"));
  element("h2", story, visible(heading));
  const list = element("ul", story);
  for (const line of lines) element("li", list, visible(line));
}
byId("close").addEventListener("click", close);
document.addEventListener("keydown", event => { if (event.key === "Escape" && !byId("detail").hidden) close(); });
