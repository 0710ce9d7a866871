// Elements made from values, and a drawn page changed into a new one with as few steps as possible.
//
// Text enters the page as text nodes only: this module is the one place that makes nodes, and it never parses markup.
// Names and records may have any characters. `shown` makes those visible that would reorder or hide their neighbours.

const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onsubmit", "ontoggle"];
const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("td.number", { title: "..." }, "text", child, [more])`. Empty children are left out. */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) setProperty(element, key, value);
  append(element, children);
  return element;
}

function setProperty(element, key, value) {
  if (value === undefined || value === null || value === false) return;
  if (HANDLERS.includes(key)) element[key] = value;
  else if (key.startsWith("on")) throw new Error(`${key} would be lost when the page changes`);
  else if (key === "class") element.className += ` ${value}`;
  else if (key === "vars") for (const [name, of] of Object.entries(value)) element.style.setProperty(name, of);
  else if (key === "value") (element.value = value), element.setAttribute("value", value);
  else if (key === "checked") (element.checked = true), element.setAttribute("checked", "");
  else element.setAttribute(key, value === true ? "" : value);
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Make a small drawing from paths of 16 by 16 units. It says nothing to a screen reader. */
export function icon(...paths) {
  const drawing = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }))
    drawing.setAttribute(key, value);
  for (const d of paths) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    drawing.append(path);
  }
  return drawing;
}

// Characters of control, and those that reorder, join, or take no room. Line ends and tabs are decided by the caller.
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffc]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;
const UNSEEN_IN_LINE = new RegExp(`[\\t\\n\\r]|${UNSEEN.source}`, "g");
// Further characters that cannot be seen all stand as one sign, because each number is an element of the page.
const UNSEEN_MOST = 1_000;
// More combining marks than this on one letter would climb over the lines above.
const MARKS = /(\p{M}{3})\p{M}+/gu;

/** Return nodes for any text, isolated from its neighbours. What cannot be seen stands as its number, as in U+202E. */
export function shown(text, { lines = false } = {}) {
  const whole = h("bdi");
  const source = String(text).replace(MARKS, "$1\u2026");
  let begin = 0;
  let found = 0;
  for (const match of source.matchAll(lines ? UNSEEN : UNSEEN_IN_LINE)) {
    if (++found > UNSEEN_MOST) {
      whole.append(source.slice(begin).replace(lines ? UNSEEN : UNSEEN_IN_LINE, "\ufffd"));
      return whole;
    }
    whole.append(source.slice(begin, match.index), h("span.unseen-character", {}, named(match[0])));
    begin = match.index + match[0].length;
  }
  whole.append(source.slice(begin));
  return whole;
}

function named(character) {
  const short = { "\t": "\\t", "\n": "\\n", "\r": "\\r" }[character];
  return short ?? `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Return a sentence in which the commands between backticks are drawn as code. */
export function told(sentence) {
  const parts = String(sentence).split("`");
  if (parts.length % 2 === 0) return shown(sentence);
  return parts.map((each, at) => (at % 2 ? h("code", {}, shown(each)) : shown(each)));
}

/** Return a text for places that take no nodes, such as a tooltip or the page's title: what cannot be seen is named. */
export function plain(text, most = 300) {
  const named_ = String(text).replace(UNSEEN_IN_LINE, named);
  return named_.length > most ? `${named_.slice(0, most)}\u2026` : named_;
}

/** Change the children of `element` into `wanted`. Focus, scrolling, open details and typed text stay. */
export function redraw(element, ...wanted) {
  const holder = document.createDocumentFragment();
  append(holder, wanted);
  changeChildren(element, holder);
}

function changeChildren(old, wanted) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child.dataset?.key !== undefined) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const key = child.dataset?.key;
    let same = key === undefined ? place : keyed.get(key);
    if (key === undefined) while (same && same.dataset?.key !== undefined) same = same.nextSibling;
    if (same && alike(same, child)) {
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      keyed.delete(key);
      change(same, child);
    } else old.insertBefore(child, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function alike(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

function change(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  for (const name of HANDLERS) if (old[name] !== wanted[name]) old[name] = wanted[name];
  // What draws itself, such as a chart, is left alone and told its new values.
  if (old.dataset?.keep !== undefined) return void old.refresh?.(wanted);
  // What somebody has typed or chosen stays, until the program wants something else than before.
  const before = wish(old);
  changeAttributes(old, wanted);
  changeChildren(old, wanted);
  if (wish(wanted) !== before && old !== document.activeElement) fulfil(old, wanted);
}

function wish(element) {
  if (element.nodeName === "SELECT") return element.dataset.chosen;
  if (element.nodeName !== "INPUT") return undefined;
  return element.type === "checkbox" ? element.hasAttribute("checked") : element.getAttribute("value");
}

function fulfil(element, wanted) {
  if (element.type === "checkbox") element.checked = wanted.hasAttribute("checked");
  else element.value = element.nodeName === "SELECT" ? wanted.dataset.chosen : (wanted.getAttribute("value") ?? "");
}

function changeAttributes(old, wanted) {
  for (const { name } of [...old.attributes]) {
    // Whoever opened it decides, not the program.
    if (name === "open" && old.nodeName === "DETAILS") continue;
    if (!wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === "style") {
      if (old.style.cssText !== wanted.style.cssText) old.style.cssText = wanted.style.cssText;
    } else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

/** Say a sentence to those who hear the page. */
export function say(sentence) {
  document.getElementById("spoken").textContent = sentence;
}
