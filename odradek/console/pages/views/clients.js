// The clients: libraries, versions, users, bytes, throttling, and what they push.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, count, counted, duration, sentence } from "../code/format.js";
import { badge, button, emptyBox, groupLink, notice, pageHead, searchField } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Clients";

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/clients", { search: page.get("search"), page: page.get("page") }, { signal }),
    render: (data) => [data.errors.length ? notice("warning", ["Something is missing: ", data.errors.slice(0, 3).map((each) => h("div", {}, shown(sentence(each))))]) : null, list(page, data)],
    frame: (inner, data) => [pageHead("Clients", { beside: data ? counted(data.total, "client") : [] }), h("div.bar", { "data-key": "bar" }, searchField(page, "Search by id, user, address or library")), inner],
  });
}

const keyOf = (row) => [row.client_id, row.user, row.address, row.library, row.version, row.broker].join("|");

function list(page, data) {
  return table({
    page,
    caption: "Clients",
    rows: data.rows,
    paged: data,
    size: 200,
    sorted: "client_id",
    keyOf,
    detail: (row) => (page.get("open") === keyOf(row) && row.figures.length ? figures(row) : null),
    empty: page.get("search") ? emptyBox("No client is like that") : emptyBox("No client is known", "Members of groups appear here, and clients that push their metrics: ", h("code", {}, "odradek config set client-metrics all interval.ms=5000 'metrics=*'")),
    columns: [
      { key: "client_id", label: "Client id", head: true, wide: true, sort: (row) => row.client_id, cell: (row) => (row.client_id ? shown(row.client_id) : h("span.null", {}, "none")) },
      { key: "library", label: "Library", sort: (row) => row.library, cell: library },
      { key: "user", label: "User, address", wide: true, sort: (row) => row.user, cell: (row) => [row.user ? shown(row.user) : "\u2013", h("span.small-note", {}, shown(row.address.replace(/^\//, "")))] },
      { key: "groups", label: "Groups", wide: true, cell: (row) => (row.groups.length ? row.groups.map((group, at) => [at ? ", " : "", groupLink(group)]) : "\u2013") },
      { key: "connections", label: "Running", number: true, sort: (row) => row.connections, cell: (row) => count(row.connections), title: "running clients with this id and user" },
      { key: "out", label: "Sends", number: true, sort: (row) => row.bytes_out_per_second, cell: (row) => byteRate(row.bytes_out_per_second) },
      { key: "in", label: "Gets", number: true, sort: (row) => row.bytes_in_per_second, cell: (row) => byteRate(row.bytes_in_per_second) },
      { key: "throttled", label: "Throttled", sort: (row) => row.throttled_ms, cell: throttledCell },
      { key: "pushes", label: "Metrics", cell: (row) => pushesCell(page, row) },
    ],
  });
}

function library(row) {
  if (!row.library) return "\u2013";
  return [shown(row.library), row.version ? h("span.small-note", {}, shown(row.version)) : null];
}

function throttledCell(row) {
  if (absent(row.throttled)) return "\u2013";
  if (!row.throttled) return h("span.muted", {}, "no");
  return badge(row.throttled_ms ? duration(row.throttled_ms) : "yes", "warning", "the longest time that a broker made it wait, by a quota");
}

function pushesCell(page, row) {
  if (absent(row.pushes)) return h("span.muted", {}, "not pushed");
  const isOpen = page.get("open") === keyOf(row);
  const told = `pushed ${counted(row.pushes, "time")}, the last ${duration(row.since_push_ms)} ago`;
  return row.figures.length ? button(isOpen ? "Hide" : counted(row.figures.length, "figure"), () => page.set({ open: isOpen ? "" : keyOf(row) }, { replace: true }), { class: "quiet", "aria-expanded": String(isOpen), title: told }) : h("span", { title: told }, "pushed");
}

function figures(row) {
  return h(
    "table",
    { "aria-label": "What the client has pushed" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "As"), h("th", { scope: "col" }, "Figure"), h("th.number", { scope: "col" }, "Value"))),
    h("tbody", {}, row.figures.map((each) => h("tr", {}, h("td", {}, shown(each.role)), h("td.wide.mono", {}, shown(each.name)), h("td.number", {}, absent(each.value) ? "\u2013" : each.value.toLocaleString("en", { maximumSignificantDigits: 6 }))))),
  );
}
