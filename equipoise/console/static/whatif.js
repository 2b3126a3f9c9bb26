// What would follow from a change, asked of the worker: one more member, without some, another setting.
import { count, element, make, number, scrolled, span, visible } from "./basics.js";

const field = (form, node, label) => { node.setAttribute("aria-label", label); form.appendChild(node); return node; };
const button = form => element("button", form, "Preview");

// Draws the questions into `holder`. Returns a function that takes the group as it is now.
export const whatIf = (holder, group, ask) => {
  const answer = document.createElement("div");
  answer.id = "answer"; answer.setAttribute("aria-live", "polite");
  const put = async (query, title) => {
    answer.replaceChildren();
    element("p", answer, "asking the assignor…", "key");
    try {
      const { document: found } = await ask("api/what-if", [["group", group], ...query]);
      show(answer, title, found);
    } catch (error) {
      answer.replaceChildren();
      element("p", answer, visible(error.message, 600), "problem");
    }
  };
  const question = (what, fill, query) => {
    const form = element("form", holder, undefined, "ask");
    form.append(what);
    const read = fill(form);
    button(form);
    form.addEventListener("submit", event => { event.preventDefault(); put(...query(read())); });
    return read;
  };
  question("more members ", form => { const input = field(form, element("input"), "members to add"); input.type = "number"; input.min = 1; input.max = 100; input.value = 1; return () => input.value; },
    n => [[["join", n]], `${count(Number(n), "member")} more`]);
  let members = null, names = null;
  question("without ", form => { members = field(form, element("select"), "members to leave"); members.multiple = true; members.size = 3; return () => [...members.selectedOptions].map(each => each.value); },
    gone => [gone.map(name => ["without", name]), `without ${gone.length ? gone.map(name => visible(name, 60)).join(", ") : "anybody"}`]);
  question("setting ", form => {
    names = field(form, element("select"), "setting");
    const value = field(form, element("input"), "its value"); value.type = "text";
    names.addEventListener("change", () => { value.value = names.selectedOptions[0]?.dataset.now || ""; });
    names.read = () => { if (!value.value) value.value = names.selectedOptions[0]?.dataset.now || ""; };
    return () => `${names.value}=${value.value}`;
  }, text => [[["set", text]], `with ${visible(text)}`]);
  holder.appendChild(answer);
  let before = "";
  return now => {
    const text = JSON.stringify([now.member_rows.map(each => each.member), now.settings]);
    if (text === before) return;
    before = text;
    const chosen = new Set([...members.selectedOptions].map(each => each.value)), name = names.value || "max_warmups";
    members.replaceChildren();
    for (const each of now.member_rows) { const option = element("option", members, visible(each.member, 60)); option.value = each.member; option.selected = chosen.has(each.member); }
    names.replaceChildren();
    for (const [each, value] of Object.entries(now.settings)) {
      if (["assignor", "solver", "led_by"].includes(each)) continue;
      const option = element("option", names, each);
      option.value = each; option.dataset.now = value; option.selected = each === name;
    }
    names.read();
  };
};

const show = (answer, title, found) => {
  answer.replaceChildren();
  element("h3", answer, title);
  const restore = found.restore_records ? `, ${count(found.restore_records, "record")} to restore${found.restore_ms === null ? "" : `, about ${span(found.restore_ms)} for one member at the slowest measured rate`}` : "";
  const list = element("ul", answer);
  if (found.changes_of_owner !== undefined) {
    element("li", list, `${count(found.changes_of_owner, "change")} of owner until the target is reached (balance needs ${number(found.fewest)})`);
    element("li", list, `${count(found.warmups, "warm-up")} at once${restore}`);
    element("li", list, `imbalance ${number(found.imbalance_before)} now, ${number(found.imbalance_after)} at the target`);
    if (found.waited_ms) element("li", list, `decided after ${span(found.waited_ms)}, which the settings wait for further changes`);
  }
  for (const remark of found.remarks) element("li", list, visible(remark, 600));
  if (found.members.length) {
    const table = element("table", scrolled(answer, "tasks of each member")), head = element("tr", element("thead", table)), rows = element("tbody", table);
    for (const name of ["member", "tasks now", "at the target", ""]) { const cell = element(name ? "th" : "td", head, name); if (name) cell.scope = "col"; }
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
  const begins = found.moves.slice(0, 12);
  if (begins.length) {
    const moves = element("ul", answer);
    for (const each of begins) element("li", moves, visible(`${each.task} ${each.source || "nobody"} → ${each.destination} ${each.state}${each.why ? `: ${each.why}` : ""}`, 500));
    if (found.moves.length > begins.length) element("p", answer, `and ${count(found.moves.length - begins.length, "movement")} more`, "key");
  }
};
