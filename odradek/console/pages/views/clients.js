// The clients: libraries, versions, users, bytes, throttling, and what they push.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, count, counted, duration } from "../code/format.js";
import { badge, emptyBox, pageHead, searchField } from "../code/parts.js";
import { matching, table } from "../code/table.js";

export const title = () => "Clients";

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/clients", {}, { signal }),
    render: (data) => list(page, rowsOf(data)),
    frame: (inner, data) => [pageHead("Clients", { beside: data ? counted(rowsOf(data).length, "client") : [] }), h("div.bar", { "data-key": "bar" }, searchField(page, "Search by id, user, address or library")), inner],
  });
}

const rowsOf = (data) => (Array.isArray(data) ? data : data.rows ?? data.clients);

function list(page, all) {
  const rows = matching(all, page.get("search"), (row) => [row.client_id, row.user, row.address, row.library]);
  return table({
    page,
    caption: "Clients",
    rows,
    sorted: "client_id",
    keyOf: (row) => [row.client_id, row.user, row.address, row.library, row.version].join("\u0000"),
    empty: all.length ? emptyBox("No client is like that") : emptyBox("No client is connected"),
    columns: [
      { key: "client_id", label: "Client id", head: true, wide: true, sort: (row) => row.client_id, cell: (row) => (row.client_id ? shown(row.client_id) : h("span.null", {}, "none")) },
      { key: "library", label: "Library", sort: (row) => row.library, cell: (row) => library(row) },
      { key: "user", label: "User", sort: (row) => row.user, cell: (row) => (row.user ? shown(row.user) : "\u2013") },
      { key: "address", label: "Address", sort: (row) => row.address, cell: (row) => (row.address ? shown(row.address) : "\u2013") },
      { key: "connections", label: "Connections", number: true, sort: (row) => row.connections, cell: (row) => count(row.connections) },
      { key: "in", label: "Sends", number: true, sort: (row) => row.bytes_in_per_second, cell: (row) => byteRate(row.bytes_in_per_second) },
      { key: "out", label: "Gets", number: true, sort: (row) => row.bytes_out_per_second, cell: (row) => byteRate(row.bytes_out_per_second) },
      { key: "throttled", label: "Throttled", sort: (row) => Number(row.throttled ?? 0), cell: throttledCell },
      { key: "pushes", label: "Pushes metrics", wide: true, cell: pushesCell },
    ],
  });
}

function library(row) {
  if (!row.library) return "\u2013";
  return [shown(row.library), row.version ? [" ", h("span.muted", {}, shown(row.version))] : null];
}

function throttledCell(row) {
  const { throttled } = row;
  if (absent(throttled) || throttled === false || throttled === 0) return h("span.muted", {}, "no");
  return badge(typeof throttled === "number" ? duration(throttled) : "yes", "warning");
}

function pushesCell(row) {
  const { pushes } = row;
  if (absent(pushes) || pushes === false || pushes.length === 0) return h("span.muted", {}, "no");
  if (Array.isArray(pushes)) return [shown(pushes.slice(0, 4).join(", ")), pushes.length > 4 ? h("span.muted", {}, ` and ${pushes.length - 4} more`) : null];
  return pushes === true ? "yes" : shown(typeof pushes === "object" ? Object.entries(pushes).map(([name, value]) => `${name} ${value}`).join(", ") : pushes);
}
