// The timeline page: the history in #data, as one picture (chart.js) with its totals above and one task in words below.
import { element, number, scrolled, visible } from "./basics.js";
import { Chart } from "./chart.js";
import { taskDetail } from "./detail.js";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);

for (const [id, text] of [["title", data.title], ["subtitle", data.subtitle], ["note", data.note], ["caption", data.caption]]) byId(id).textContent = visible(text);
for (const [value, label] of data.cards) { const card = element("div", byId("cards"), undefined, "card"); element("b", card, value); element("span", card, label); }

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
  const table = element("table", scrolled(byId("windows"), "incidents and actions")), head = element("tr", element("thead", table)), rows = element("tbody", table);
  for (const name of data.columns) element("th", head, name).scope = "col";
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
  const story = element("article", byId("stories")), list = element("ul", (element("h2", story, visible(heading)), story));
  for (const line of lines) element("li", list, visible(line));
}
byId("close").addEventListener("click", close);
document.addEventListener("keydown", event => { if (event.key === "Escape" && !byId("detail").hidden) close(); });
