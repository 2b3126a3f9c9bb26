// What would follow from a change, asked of the worker: one more member, without some, another setting.
import { ask } from "./asking.js";
import { button, count, element, make, number, scrolled, span, table, visible } from "./basics.js";
/** @typedef {import("./documents").Group} Group */
/** @typedef {[query: string[][], title: string]} Question */

/** @template {HTMLElement} T @param {HTMLElement} form @param {T} node @param {string} label */
const field = (form, node, label) => { node.setAttribute("aria-label", label); form.appendChild(node); return node; };

// Draws the questions into `holder`. Returns a function that takes the group as it is now.
/** @param {HTMLElement} holder @param {string} group */
export const whatIf = (holder, group) => {
  const answer = document.createElement("div");
  answer.id = "answer"; answer.setAttribute("aria-live", "polite");
  /** @param {string} what @param {() => Question} read */
  const question = (what, read) => {
    const form = element("form", holder, what, "ask");
    form.addEventListener("submit", async event => {
      event.preventDefault();
      const [query, title] = read();
      answer.replaceChildren(element("p", null, "asking the assignor…", "key"));
      try {
        const { document: found } = await ask("api/what-if", [["group", group], ...query]);
        show(answer, title, found);
      } catch (error) {
        answer.replaceChildren(element("p", null, visible(error instanceof Error ? error.message : error, 600), "problem"));
      }
    });
    return form;
  };
  const preview = (/** @type {HTMLElement} */ form) => { button(form, "Preview", () => {}).type = "submit"; };

  const more = question("more members ", () => [[["join", join.value]], `${count(Number(join.value), "member")} more`]);
  const join = field(more, element("input"), "members to add");
  for (const [name, value] of [["type", "number"], ["min", "1"], ["max", "100"], ["value", "1"]]) join.setAttribute(name, value);
  preview(more);

  const chosen = () => [...members.selectedOptions].map(each => each.value);
  const without = question("without ", () => {
    const names = chosen().map(name => visible(name, 60)).join(", ");
    return [chosen().map(name => ["without", name]), `without ${names || "anybody"}`];
  });
  const members = field(without, element("select"), "members to leave");
  members.multiple = true; members.size = 3;
  preview(without);

  const set = question("setting ", () => {
    const text = `${names.value}=${value.value}`;
    return [[["set", text]], `with ${visible(text)}`];
  });
  const names = field(set, element("select"), "setting"), value = field(set, element("input"), "its value");
  const current = () => names.selectedOptions[0]?.dataset.now || "";
  value.type = "text";
  names.addEventListener("change", () => { value.value = current(); });
  preview(set);

  holder.appendChild(answer);
  let before = "";
  return (/** @type {Group} */ now) => {
    const text = JSON.stringify([now.member_rows.map(each => each.member), now.settings]);
    if (text === before) return;
    before = text;
    const gone = chosen(), name = names.value || "max_warmups";
    members.replaceChildren();
    for (const { member } of now.member_rows) {
      const option = element("option", members, visible(member, 60));
      option.value = member; option.selected = gone.includes(member);
    }
    names.replaceChildren();
    for (const [each, own] of Object.entries(now.settings)) {
      if (["assignor", "solver", "led_by"].includes(each)) continue;
      const option = element("option", names, each);
      option.value = each; option.dataset.now = own; option.selected = each === name;
    }
    value.value ||= current();
  };
};

/** @param {HTMLElement} answer @param {string} title @param {import("./documents").WhatIf} found */
const show = (answer, title, found) => {
  answer.replaceChildren(element("h3", null, title));
  const list = element("ul", answer);
  if (found.changes_of_owner !== undefined) {
    const { restore_records: records = 0, restore_ms: ms = null } = found;
    const slowest = ms === null ? "" : `, about ${span(ms)} for one member at the slowest measured rate`;
    const changes = `${count(found.changes_of_owner, "change")} of owner until the target is reached`;
    element("li", list, `${changes} (balance needs ${number(found.fewest)})`);
    element("li", list, `${count(found.warmups, "warm-up")} at once${records ? `, ${count(records, "record")} to restore${slowest}` : ""}`);
    element("li", list, `imbalance ${number(found.imbalance_before)} now, ${number(found.imbalance_after)} at the target`);
    if (found.waited_ms) element("li", list, `decided after ${span(found.waited_ms)}, which the settings wait for further changes`);
  }
  for (const remark of found.remarks) element("li", list, visible(remark, 600));
  if (found.members.length) {
    const rows = table(scrolled(answer, "tasks of each member"), ["member", "tasks now", "at the target", ""]);
    const most = Math.max(1, ...found.members.flatMap(each => [each.before, each.after]));
    for (const each of found.members.slice(0, 60)) {
      const row = element("tr", rows);
      element("td", row, visible(each.member), "name");
      element("td", row, number(each.before)); element("td", row, number(each.after));
      const svg = make("svg", { width: 84, height: 10, "aria-hidden": true }, element("td", row));
      make("rect", { width: 84 * each.before / most, height: 3, y: 0, class: "standbykey" }, svg);
      make("rect", { width: 84 * each.after / most, height: 5, y: 4, fill: "var(--focus)" }, svg);
    }
  }
  const begins = found.moves.slice(0, 12), rest = found.moves.length - begins.length;
  const moves = begins.length ? element("ul", answer) : null;
  for (const { task, source, destination, state, why } of begins) {
    element("li", moves, visible(`${task} ${source || "nobody"} → ${destination} ${state}${why ? `: ${why}` : ""}`, 500));
  }
  if (rest > 0) element("p", answer, `and ${count(rest, "movement")} more`, "key");
};
