// The history of the cluster, from its metadata log: who changed what, when, and the difference.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, ago, clock, count } from "../code/format.js";
import { choice, emptyBox, field, pageHead } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "History";

const SPANS = [["3600000", "the last hour"], ["86400000", "the last day"], ["604800000", "the last week"], ["", "all that is kept"]];

export function start(page) {
  return page.live({
    seconds: 10,
    load: (signal) => {
      const span = page.get("span");
      // Rounded, so that people who look at the same time share one answer.
      const since = span ? Math.floor((Date.now() - Number(span)) / 10_000) * 10_000 : "";
      return get("/api/history", { topic: page.get("topic"), since_ms: since, page: page.get("page") }, { signal });
    },
    render: (data) => list(page, data),
    frame: (inner) => [pageHead("History", { below: "From the cluster's metadata log. Snapshots replace what is older than they are." }), bar(page), inner],
  });
}

function bar(page) {
  const topic = h("input.search", { name: "topic", value: page.get("topic"), placeholder: "all", autocomplete: "off", spellcheck: "false", onchange: (event) => page.set({ topic: event.target.value, page: "" }) });
  return h("div.bar", { "data-key": "bar" }, h("div.field", {}, field("Topic", topic)), h("div.field", {}, field("Since", choice("span", page.get("span"), SPANS, (value) => page.set({ span: value, page: "" })))));
}

/** Return the changes of an answer, the newest first. */
export const historyRows = (data) => (Array.isArray(data) ? data : data.rows ?? data.events);

function list(page, data) {
  const rows = historyRows(data);
  return table({
    page,
    caption: "History",
    rows,
    total: Array.isArray(data) ? null : data.total,
    size: data.page_size ?? 100,
    keyOf: (row) => `${row.offset}/${row.what}/${JSON.stringify(row.after ?? null)}`,
    empty: emptyBox("Nothing happened", "Nothing in the metadata log is about this topic in this time."),
    columns: [
      { key: "time", label: "When", head: true, cell: (row) => [ago(row.time_ms), h("span.small-note", {}, clock(row.time_ms))] },
      { key: "who", label: "Who", cell: (row) => (row.who ? shown(row.who) : h("span.muted", {}, "the cluster")) },
      { key: "what", label: "What", wide: true, cell: (row) => shown(row.what ?? row.sentence ?? "") },
      { key: "difference", label: "Before and after", wide: true, cell: difference },
      { key: "offset", label: "Offset", number: true, cell: (row) => count(row.offset) },
    ],
  });
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function difference(row) {
  if (absent(row.before) && absent(row.after)) return "\u2013";
  return [
    absent(row.before) ? null : h("div.before", {}, h("span.unseen", {}, "before: "), "\u2212 ", shown(text(row.before))),
    absent(row.after) ? null : h("div.after", {}, h("span.unseen", {}, "after: "), "+ ", shown(text(row.after))),
  ];
}
