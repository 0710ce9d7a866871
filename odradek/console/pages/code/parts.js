// The small parts that pages are made of: notices, badges, tiles, tabs, meters, and the frame with the title.

import { part } from "./api.js";
import { h, icon, plain, shown, told } from "./dom.js";
import { count } from "./format.js";
import { addressWith } from "./router.js";

const SIGNS = {
  ok: "M3 8.5l3.2 3.2L13 5",
  warning: "M8 2.2l6.4 11.3H1.6zM8 6.4v3.4M8 11.6v.6",
  critical: "M5.2 1.8h5.6l3.4 3.4v5.6l-3.4 3.4H5.2l-3.4-3.4V5.2zM8 4.8v4M8 11v.6",
  info: "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8zM8 7.2v4M8 4.6v.6",
};

/** Return the sign of a severity: ok, warning, critical or info. Its shape says what its colour says. */
export const sign = (severity) => {
  const drawing = icon(SIGNS[severity] ?? SIGNS.info);
  drawing.classList.add(`sign-${severity in SIGNS ? severity : "info"}`);
  return drawing;
};

export const button = (label, onclick, props = {}) => h("button", { type: "button", onclick, ...props }, label);

export const link = (href, ...children) => h("a", { href }, ...children);

export const topicLink = (name) => h("a", { href: `/topics/${part(name)}` }, shown(name));

export const groupLink = (name) => h("a", { href: `/groups/${part(name)}` }, shown(name));

/** Return a box that says what has happened. */
export function notice(severity, children) {
  const role = severity === "critical" ? "alert" : undefined;
  return h(`div.notice.${severity}`, { role, "data-key": `notice-${severity}` }, sign(severity), h("div", {}, children));
}

/** Return a box for a place without data: what it would show, and how that comes about. */
export function emptyBox(title, ...hint) {
  return h("div.empty", {}, h("p.empty-title", {}, title), hint.length ? h("p", {}, ...hint) : null);
}

export function loadingBox() {
  return h("div.loading", { "data-key": "loading" }, h("span.spinner", { "aria-hidden": "true" }), "Asking the cluster\u2026");
}

/** Return a box for a load that failed, with the sentence of the server. */
export function errorBox(error, again) {
  const title = {
    0: "No answer",
    403: "You may not see this",
    404: "This does not exist",
    502: "The cluster does not answer",
    504: "The cluster took too long",
  }[error.status];
  const severity = error.status === 403 || error.status === 404 ? "info" : "critical";
  return h(
    `div.failure.${severity}`,
    { "data-key": "failure", role: "alert" },
    sign(severity),
    h(
      "div",
      {},
      h("p.empty-title", {}, title ?? "That did not work"),
      h("p", {}, told(error.message)),
      error.code === "CLUSTER_AUTHORIZATION_FAILED" ? h("p.muted", {}, "Most of what is asked of the whole cluster needs the right DESCRIBE on it: ", h("code", {}, "odradek acl add --user NAME --operation describe --cluster")) : null,
    ),
    again ? button("Ask again", again) : null,
  );
}

/** Return a word on a coloured ground; the tone is ok, warning, critical, info or plain. */
export const badge = (word, tone = "plain", title = undefined) => h(`span.badge.${tone}`, { title: title && plain(title) }, plain(word, 60));

/** Return a figure with its name. `tone` colours it when it is a reason to worry. */
export function tile(label, value, { tone = "", note = null, href = null } = {}) {
  const inner = [h("span.tile-value", { class: tone }, value), h("span.tile-label", {}, label), note && h("span.tile-note", {}, note)];
  return href ? h("a.tile", { href }, inner) : h("div.tile", {}, inner);
}

export const tiles = (...all) => h("div.tiles", {}, all);

/** Return a bar that is full to a share of 1. Its text says the same. */
export function meter(share, tone = "", label = "") {
  const full = Math.min(1, Math.max(0, share || 0));
  return h("span.meter", { class: tone, role: "img", "aria-label": label || `${Math.round(full * 100)} %`, vars: { "--full": `${full * 100}%` } });
}

/** Return a panel with a heading. */
export function panel(title, ...children) {
  return h("section.panel", { "data-key": `panel-${title}` }, h("div.panel-head", {}, h("h2", {}, title)), children);
}

export function panelWith(title, beside, ...children) {
  return h("section.panel", { "data-key": `panel-${title}` }, h("div.panel-head", {}, h("h2", {}, title), h("div.beside", {}, beside)), children);
}

/** Return the head of a page: where it is, its title, what stands beside it. */
export function pageHead(title, { above = null, beside = [], below = null } = {}) {
  return h(
    "div.page-head",
    { "data-key": "page-head" },
    h("div.page-title", {}, above && h("nav.crumbs", { "aria-label": "Above this page" }, above, h("span", { "aria-hidden": "true" }, "/")), h("h1", {}, title)),
    h("div.beside", {}, beside),
    below && h("p.page-note", {}, below),
  );
}

/** Return links that change one parameter of the address, drawn as tabs. Each tab is [value, label, number]. `elsewhere` is a
 * last tab that leads to another page. */
export function tabs(name, chosen, all, elsewhere = null) {
  return h(
    "nav.tabs",
    { "aria-label": "Parts of this page", "data-key": "tabs" },
    all.map(([value, label, number]) =>
      h(
        "a",
        { href: addressWith({ [name]: value, page: "", sort: "", search: "", partition: "" }), "aria-current": value === chosen ? "page" : undefined },
        label,
        number === undefined || number === null ? null : h("span.number-of", {}, count(number)),
      ),
    ),
    elsewhere,
  );
}

/** Return a field with its label. (Without a name of its own, a choice would be named by all its options.) */
export function field(label, control) {
  control.setAttribute("aria-label", label);
  return h("label.field", {}, h("span.field-label", {}, label), control);
}

/** Return a choice among [value, label] pairs. */
export function choice(name, chosen, all, onchange) {
  const control = h(
    "select",
    { name, "data-chosen": chosen, onchange: (event) => onchange?.(event.target.value) },
    all.map(([value, label]) => h("option", { value, selected: String(value) === String(chosen) }, plain(label, 60))),
  );
  control.value = chosen;
  return control;
}

let typing = 0;

/** Return the field that searches a page's list, kept in the address as `search`. The key "/" leads to it. */
export function searchField(page, placeholder) {
  const control = h("input.search", {
    type: "search",
    name: "search",
    placeholder,
    "aria-label": placeholder,
    autocomplete: "off",
    spellcheck: "false",
    value: page.get("search"),
    "data-key": "search",
    oninput: (event) => {
      clearTimeout(typing);
      const value = event.target.value;
      typing = setTimeout(() => page.signal.aborted || page.set({ search: value, page: "" }, { replace: true }), 160);
    },
  });
  return control;
}

/** Return pairs of a name and a value as a list. Pairs without a value are left out. */
export function facts(...pairs) {
  return h(
    "dl.facts",
    {},
    pairs.filter(([, value]) => value !== undefined && value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}
