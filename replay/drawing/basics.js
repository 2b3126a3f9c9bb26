// What the pictures share: elements, numbers and times as text, names that are safe to show, a tooltip.
const SVG = "http://www.w3.org/2000/svg";

export const make = (name, attributes, parent, text) => {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
};
export const element = (name, parent, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  if (parent) parent.appendChild(node);
  return node;
};
export const scrolled = (parent, label, className = "scrolled") => { // the keyboard reaches it, too
  const node = element("div", parent, undefined, className);
  node.tabIndex = 0; node.setAttribute("role", "region"); node.setAttribute("aria-label", label);
  return node;
};
// Names come from anywhere: what could not be seen, or would turn the direction of what follows, is made visible.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
export const visible = (text, most = 300) => {
  const whole = String(text), cut = whole.length > most ? `${whole.slice(0, most)}… (${number(whole.length)} characters)` : whole;
  return cut.replace(UNSEEN, c => c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
};
export const number = n => n === null || n === undefined ? "" : n.toLocaleString("en-US");
export const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many || one + "s"}`;
export const span = ms => ms < 0 ? "0" : ms < 1000 ? `${Math.round(ms)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : ms < 3600000
  ? `${Math.floor(ms / 60000)} min ${String(Math.floor(ms / 1000) % 60).padStart(2, "0")} s`
  : `${Math.floor(ms / 3600000)} h ${String(Math.floor(ms / 60000) % 60).padStart(2, "0")} min`;
export const clockOf = (wallMs, fine) => new Date(wallMs).toISOString().slice(11, fine ? 23 : 19);
export const grouped = (list, key) => {
  const found = new Map();
  for (const item of list) { const k = item[key]; if (!found.has(k)) found.set(k, []); found.get(k).push(item); }
  return found;
};
export const steps = (list, sinceAt, untilAt) => { // +1/-1 events -> [[ms, level]...]
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
export const levelAt = (curve, ms) => {
  let low = 0, high = curve.length;
  while (low < high) { const middle = (low + high) >> 1; if (curve[middle][0] <= ms) low = middle + 1; else high = middle; }
  return low ? curve[low - 1][1] : 0;
};
export const inkOn = hex => { // black or white, whichever is easier to read
  const part = at => { const c = parseInt(hex.slice(at, at + 2), 16) / 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
  return .2126 * part(1) + .7152 * part(3) + .0722 * part(5) > .18 ? "#10151c" : "#ffffff";
};
let pen = null;
export const textWidth = (text, px) => {
  pen = pen || document.createElement("canvas").getContext("2d");
  pen.font = `600 ${px}px system-ui, "Segoe UI", Roboto, sans-serif`;
  return pen.measureText(text).width;
};
export const startOf = (text, width, px) => { // as much of the text as fits into `width` pixels
  if (textWidth(text, px) <= width) return text;
  let kept = Math.min(text.length - 1, 200);
  while (kept > 2 && textWidth(text.slice(0, kept) + "…", px) > width) kept -= 1;
  return kept > 2 ? text.slice(0, kept) + "…" : "";
};
export const endOf = (text, width, px) => { // ids of one application differ at their end
  let first = Math.max(0, text.length - 200);
  while (first < text.length - 1 && textWidth((first ? "…" : "") + text.slice(first), px) > width) first += 1;
  return (first ? "…" : "") + text.slice(first);
};
export const partOf = task => { // 0_3 is of sub-topology 0, orders-3 of orders
  const found = /^(\d+)_\d+$/.exec(task);
  return found ? `sub-topology ${found[1]}` : task.replace(/-\d+$/, "");
};
export const box = (left, top, wide, high) => `M${left.toFixed(1)} ${top}h${wide.toFixed(1)}v${high}h${(-wide).toFixed(1)}z`;

// A tooltip that follows the mouse, or stands beside what the keyboard points at.
export class Tip {
  constructor() { this.node = element("div", document.body, undefined, "tip"); this.node.hidden = true; this.node.id = "tip"; }
  show(left, top, text) {
    this.node.textContent = text; this.node.hidden = false;
    const size = this.node.getBoundingClientRect();
    this.node.style.left = Math.max(4, Math.min(left + 14, innerWidth - size.width - 8)) + "px";
    this.node.style.top = Math.max(4, top + 20 + size.height > innerHeight ? top - size.height - 12 : top + 16) + "px";
  }
  hide() { this.node.hidden = true; }
  on(node, text) {
    node.addEventListener("mousemove", event => this.show(event.clientX, event.clientY, text(event)));
    node.addEventListener("mouseleave", () => this.hide());
  }
}
