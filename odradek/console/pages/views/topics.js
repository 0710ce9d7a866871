// The topics: searched, sorted and paged by the server, so that ten thousand cost as little as ten.

import { get } from "../code/api.js";
import { h } from "../code/dom.js";
import { absent, bytes, count, counted, rate } from "../code/format.js";
import { badge, emptyBox, pageHead, searchField, topicLink } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Topics";

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/topics", { search: page.get("search"), sort: page.get("sort"), page: page.get("page"), internal: page.get("internal") }, { signal }),
    render: (data) => list(page, data),
    frame: (body, data) => [
      pageHead("Topics", { beside: data ? counted(data.total, "topic") : [] }),
      h("div.bar", { "data-key": "bar" }, searchField(page, "Search topics by name"), internalSwitch(page)),
      body,
    ],
  });
}

function internalSwitch(page) {
  const box = h("input", { type: "checkbox", checked: page.get("internal") === "1", onchange: (event) => page.set({ internal: event.target.checked ? "1" : "", page: "" }) });
  return h("label.check", {}, box, "Internal topics, too");
}

function list(page, { rows, total, page_size: size }) {
  const search = page.get("search");
  const empty = search
    ? emptyBox("No topic has such a name", "The search looks for a part of the name.")
    : emptyBox("There is no topic yet", "Make one: ", h("code", {}, "odradek topic create words --partitions 3"));
  return table({
    page,
    caption: "Topics",
    rows,
    total,
    size: size ?? 100,
    sorted: "name",
    keyOf: (row) => row.name,
    rowClass: (row) => (row.offline ? "bad" : row.under_replicated ? "doubtful" : ""),
    empty,
    columns: [
      { key: "name", label: "Topic", head: true, wide: true, sort: true, cell: (row) => [topicLink(row.name), row.is_internal ? [" ", badge("internal")] : null] },
      { key: "partitions", label: "Partitions", number: true, sort: true, cell: (row) => count(row.partitions) },
      { key: "replication_factor", label: "Replicas", number: true, sort: true, cell: (row) => count(row.replication_factor) },
      { key: "state", label: "State", cell: state },
      { key: "records_per_second", label: "Records in", number: true, sort: true, cell: (row) => rate(row.records_per_second) },
      { key: "bytes", label: "Size", number: true, sort: true, cell: (row) => bytes(row.bytes), title: "of all replicas on all disks" },
      { key: "cleanup_policy", label: "Clean-up", cell: (row) => (absent(row.cleanup_policy) ? "\u2013" : String(row.cleanup_policy)) },
    ],
  });
}

function state(row) {
  const found = [];
  if (row.offline) found.push(badge(`${count(row.offline)} without a leader`, "critical"));
  if (row.under_replicated) found.push(badge(`${count(row.under_replicated)} under-replicated`, "warning"));
  return h("span.badges", {}, found.length ? found : badge("in sync", "ok"));
}
