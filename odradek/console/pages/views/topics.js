// The topics: searched, sorted and paged by the server, so that ten thousand cost as little as ten.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, bytes, count, counted, rate } from "../code/format.js";
import { badge, choice, emptyBox, pageHead, searchField, topicLink } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Topics";

const STATES = [["", "All topics"], ["offline", "Without a leader"], ["under_min_isr", "Below min.insync.replicas"], ["under_replicated", "Under-replicated"], ["moving", "Moving"]];

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/topics", { ...only(page, ["search", "state", "sort", "page"]), internal: page.get("internal") === "1" ? "1" : "0" }, { signal }),
    render: (data) => list(page, data),
    frame: (body, data) => [
      pageHead("Topics", { beside: data ? `${counted(data.total, "topic")}${page.get("internal") === "1" ? "" : ", without internal ones"}` : [] }),
      h("div.bar", { "data-key": "bar" }, searchField(page, "Search topics by name"), stateChoice(page), internalSwitch(page)),
      body,
    ],
  });
}

const only = (page, names) => Object.fromEntries(names.map((name) => [name, page.get(name)]));

function stateChoice(page) {
  const control = choice("state", page.get("state"), STATES, (value) => page.set({ state: value, page: "" }));
  control.setAttribute("aria-label", "State");
  return control;
}

function internalSwitch(page) {
  const box = h("input", { type: "checkbox", checked: page.get("internal") === "1", onchange: (event) => page.set({ internal: event.target.checked ? "1" : "", page: "" }) });
  return h("label.check", {}, box, "Internal topics, too");
}

function emptyList(page) {
  if (page.get("search")) return emptyBox("No topic has such a name", "The search looks for a part of the name.");
  if (page.get("state")) return emptyBox("No topic is in this state", "That is good.");
  return emptyBox("There is no topic yet", "Make one: ", h("code", {}, "odradek topic create words --partitions 3"));
}

function list(page, data) {
  return table({
    page,
    caption: "Topics",
    rows: data.rows,
    paged: data,
    sorted: "name",
    keyOf: (row) => row.name,
    rowClass: (row) => (row.offline ? "bad" : row.under_replicated ? "doubtful" : ""),
    empty: emptyList(page),
    columns: [
      { key: "name", label: "Topic", head: true, wide: true, server: true, sort: (row) => row.name, cell: (row) => [topicLink(row.name), row.is_internal ? [" ", badge("internal")] : null] },
      { key: "partitions", label: "Partitions", number: true, server: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { key: "replication_factor", label: "Replicas", number: true, server: true, sort: (row) => row.replication_factor, cell: (row) => count(row.replication_factor) },
      { key: "under_replicated", label: "State", server: true, sort: (row) => row.under_replicated, cell: state },
      { key: "records_per_second", label: "Records in", number: true, server: true, sort: (row) => row.records_per_second, cell: (row) => rate(row.records_per_second) },
      { key: "bytes", label: "Size", number: true, server: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes), title: "of the largest replica of each partition" },
      { key: "cleanup_policy", label: "Clean-up", cell: (row) => (absent(row.cleanup_policy) ? "\u2013" : shown(row.cleanup_policy)) },
    ],
  });
}

function state(row) {
  const found = [];
  if (row.offline) found.push(badge(`${count(row.offline)} without a leader`, "critical"));
  if (row.under_replicated) found.push(badge(`${count(row.under_replicated)} under-replicated`, "warning"));
  if (row.moving) found.push(badge(`${count(row.moving)} moving`, "info"));
  return h("span.badges", {}, found.length ? found : badge("in sync", "ok"));
}
