// Parts of pages that the list of groups and the page of a group share.
import { element, number, table, visible } from "./basics.js";
/** @typedef {import("./documents").Change} Change */
/** @typedef {import("./documents").Trouble} Trouble */

/** @type {Record<import("./documents").Phase, string>} */
export const PHASES = {
  halted: "halted", unconfigured: "no configuration", empty: "no members", gathering: "gathering", leading: "led", shadowing: "watched",
};
export const to = (/** @type {string[]} */ ...parts) => "#/" + parts.map(encodeURIComponent).join("/");
/** @param {Node} parent @param {string} text @param {string} href @param {string} [className] */
export const link = (parent, text, href, className) => {
  const node = element("a", parent, visible(text), className);
  node.href = href;
  return node;
};
export const textCell = (/** @type {Node} */ row) => element("td", row, undefined, "text");
/** @param {Node} parent @param {string} title @param {string} [small] */
export const card = (parent, title, small) => {
  const node = element("section", parent, undefined, "card"), head = element("h2", node, title);
  if (small !== undefined) element("small", head, small);
  return node;
};
/** @param {Node} parent @param {Trouble[]} troubles @param {string} group @param {string} [calm] what is said where there is none */
export const troubleList = (parent, troubles, group, calm = "") => {
  const list = element("ul", parent, undefined, "troubles");
  if (!troubles.length) element("li", list, calm, "l0");
  for (const each of troubles) {
    const item = element("li", list, undefined, `l${each.level}`);
    if (each.task) link(item, each.text, to("g", group, "t", each.task));
    else if (each.member) link(item, each.text, to("g", group, "m", each.member));
    else item.append(visible(each.text));
  }
};
export const dayOf = (/** @type {number} */ ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");
const SIDES = { inside: "✓", above: "▲", below: "▼" };
/** @param {Node} holder @param {Change[]} changes @param {string} [group] */
export const changesTable = (holder, changes, group) => { // what was expected of a change beside what it cost
  if (!changes.length) { element("p", holder, "None as far as this worker remembers.", "key"); return; }
  const whose = group === undefined ? ["group*"] : [];
  const rows = table(holder, ["when*", ...whose, "change*", "verdict*", "expected (95 %) and measured*"], "changes");
  for (const each of changes) {
    const row = element("tr", rows), time = element("time", textCell(row), dayOf(each.ms));
    time.dateTime = new Date(each.ms).toISOString();
    if (group === undefined) link(textCell(row), each.group, to("g", each.group), "name");
    const what = element("td", row, visible(each.what, 300), "text");
    const about = [each.change, each.why && `because ${each.why}`, each.or_undo && "or undone"].filter(Boolean).join(", ");
    if (about) element("div", what, visible(about, 300), "key");
    element("span", textCell(row), visible(each.verdict, 200), `badge b${each.level}`);
    const costs = element("div", textCell(row), undefined, "costs");
    for (const cost of each.costs) {
      element("span", costs, cost.name, "key");
      element("span", costs, cost.expected || "-");
      const was = element("span", costs, cost.was || "not yet", cost.side);
      if (cost.side) was.append(` ${SIDES[cost.side]} ${cost.side}`);
    }
  }
};
/** @type {WeakMap<Element, string>} */
const drawn = new WeakMap();
// Draws into `holder` what `draw` makes of `value`, if that has changed. What had the focus keeps it.
/** @template T @param {HTMLElement} holder @param {T} value @param {(holder: HTMLElement, value: T) => void} draw */
export const redraw = (holder, value, draw) => {
  const text = JSON.stringify(value);
  if (drawn.get(holder) === text) return;
  drawn.set(holder, text);
  const active = document.activeElement, focused = active && holder.contains(active) ? active.getAttribute("href") : null;
  const scrolledTo = holder.scrollTop;
  holder.replaceChildren();
  draw(holder, value);
  holder.scrollTop = scrolledTo;
  if (focused) [...holder.querySelectorAll("a")].find(node => node.getAttribute("href") === focused)?.focus({ preventScroll: true });
};
