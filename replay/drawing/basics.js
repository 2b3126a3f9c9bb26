// What the pictures share: elements, numbers and times as text, names that are safe to show, a tooltip.
const SVG = "http://www.w3.org/2000/svg";
/** @typedef {Record<string, string | number | boolean>} Attributes */
/** @typedef {import("./page_data").Curve} Curve */

export const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
/**
 * @template {keyof SVGElementTagNameMap} K @param {K} name @param {Attributes} [attributes] @param {Element | null} [parent]
 * @param {string} [text]
 */
export const make = (name, attributes = {}, parent, text) => {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, String(attributes[key]));
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
};
/**
 * @template {keyof HTMLElementTagNameMap} K @param {K} name @param {Node | null} [parent] @param {string} [text]
 * @param {string} [className]
 */
export const element = (name, parent, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  if (parent) parent.appendChild(node);
  return node;
};
/** @param {Node} parent @param {string} label */
export const scrolled = (parent, label, className = "scrolled") => { // the keyboard reaches it, too
  const node = element("div", parent, undefined, className);
  node.tabIndex = 0; node.setAttribute("role", "region"); node.setAttribute("aria-label", label);
  return node;
};
/** @param {Node} parent @param {string} text @param {() => void} pressed */
export const button = (parent, text, pressed) => {
  const node = element("button", parent, text);
  node.type = "button"; node.addEventListener("click", pressed);
  return node;
};
// A table below `parent`, and its body. Columns whose names end with a star have text.
/** @param {Node} parent @param {readonly string[]} columns @param {string} [className] */
export const table = (parent, columns, className) => {
  const node = element("table", parent, undefined, className), head = element("tr", element("thead", node));
  for (const name of columns) {
    const cell = element(name ? "th" : "td", head, name.replace("*", ""), name.endsWith("*") ? "text" : "");
    if (name) cell.scope = "col";
  }
  return element("tbody", node);
};
// Names come from anywhere: what could not be seen, or would turn the direction of what follows, is made visible.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const code = (/** @type {string} */ c) => c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
export const visible = (/** @type {unknown} */ text, most = 300) => {
  const whole = String(text), cut = whole.length > most ? `${whole.slice(0, most)}… (${number(whole.length)} characters)` : whole;
  return cut.replace(UNSEEN, c => c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : `⟨U+${code(c)}⟩`);
};
export const number = (/** @type {number | null | undefined} */ n) => n === null || n === undefined ? "" : n.toLocaleString("en-US");
/** @param {number} n @param {string} one */
export const count = (n, one) => `${number(n)} ${n === 1 ? one : `${one}s`}`;
const two = (/** @type {number} */ n) => String(Math.floor(n) % 60).padStart(2, "0");
export const span = (/** @type {number} */ ms) => ms < 0 ? "0" : ms < 1000 ? `${Math.round(ms)} ms`
  : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : ms < 3600000 ? `${Math.floor(ms / 60000)} min ${two(ms / 1000)} s`
  : `${Math.floor(ms / 3600000)} h ${two(ms / 60000)} min`;
/** @param {number} wallMs @param {boolean} [fine] */
export const clockOf = (wallMs, fine) => new Date(wallMs).toISOString().slice(11, fine ? 23 : 19);
/** @template T @template {keyof T} K @param {readonly T[]} list @param {K} key @returns {Map<T[K], T[]>} */
export const grouped = (list, key) => {
  const found = new Map();
  for (const item of list) { const own = found.get(item[key]); if (own) own.push(item); else found.set(item[key], [item]); }
  return found;
};
/** @param {readonly import("./page_data").Interval[]} list @returns {Curve} how many of them there are */
export const steps = list => {
  const events = [];
  for (const item of list) { events.push([item[3], 1]); events.push([item[4], -1]); }
  events.sort((a, b) => a[0] - b[0]);
  /** @type {Curve} */
  const curve = [];
  let level = 0;
  for (const [ms, change] of events) {
    level += change;
    if (curve.length && curve[curve.length - 1][0] === ms) curve[curve.length - 1][1] = level; else curve.push([ms, level]);
  }
  return curve;
};
/** @param {Curve} curve @param {number} ms */
export const levelAt = (curve, ms) => {
  let low = 0, high = curve.length;
  while (low < high) { const middle = (low + high) >> 1; if (curve[middle][0] <= ms) low = middle + 1; else high = middle; }
  return low ? curve[low - 1][1] : 0;
};
export const inkOn = (/** @type {string} */ hex) => { // black or white, whichever is easier to read
  const part = (/** @type {number} */ at) => {
    const c = parseInt(hex.slice(at, at + 2), 16) / 255;
    return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  };
  return .2126 * part(1) + .7152 * part(3) + .0722 * part(5) > .18 ? "#10151c" : "#ffffff";
};
/** @type {CanvasRenderingContext2D | null} */
let pen = null;
/** @param {string} text @param {number} px */
export const textWidth = (text, px) => {
  pen ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  pen.font = `600 ${px}px system-ui, "Segoe UI", Roboto, sans-serif`;
  return pen.measureText(text).width;
};
/** @param {string} text @param {number} width @param {number} px */
export const startOf = (text, width, px) => { // as much of the text as fits into `width` pixels
  if (textWidth(text, px) <= width) return text;
  let kept = Math.min(text.length - 1, 200);
  while (kept > 2 && textWidth(text.slice(0, kept) + "…", px) > width) kept -= 1;
  return kept > 2 ? text.slice(0, kept) + "…" : "";
};
/** @param {string} text @param {number} width @param {number} px */
export const endOf = (text, width, px) => { // ids of one application differ at their end
  let first = Math.max(0, text.length - 200);
  while (first < text.length - 1 && textWidth((first ? "…" : "") + text.slice(first), px) > width) first += 1;
  return (first ? "…" : "") + text.slice(first);
};
export const partOf = (/** @type {string} */ task) => { // 0_3 is of sub-topology 0, orders-3 of orders
  const found = /^(\d+)_\d+$/.exec(task);
  return found ? `sub-topology ${found[1]}` : task.replace(/-\d+$/, "");
};
/** @param {number} left @param {number | string} top @param {number} wide @param {number | string} high */
export const box = (left, top, wide, high) => `M${left.toFixed(1)} ${top}h${wide.toFixed(1)}v${high}h${(-wide).toFixed(1)}z`;

// A tooltip that follows the mouse, or stands beside what the keyboard points at.
export class Tip {
  constructor() { this.node = element("div", document.body, undefined, "tip"); this.node.hidden = true; this.node.id = "tip"; }
  /** @param {number} left @param {number} top @param {string} text */
  show(left, top, text) {
    this.node.textContent = text; this.node.hidden = false;
    const size = this.node.getBoundingClientRect();
    this.node.style.left = Math.max(4, Math.min(left + 14, innerWidth - size.width - 8)) + "px";
    this.node.style.top = Math.max(4, top + 20 + size.height > innerHeight ? top - size.height - 12 : top + 16) + "px";
  }
  hide() { this.node.hidden = true; }
  /** @param {SVGElement} node @param {() => string} text */
  on(node, text) {
    node.addEventListener("mousemove", event => this.show(event.clientX, event.clientY, text()));
    node.addEventListener("mouseleave", () => this.hide());
  }
}
