// The history of the cluster, from its metadata log: who changed what, when, and the difference.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, ago, count, counted, sentence } from "../code/format.js";
import { badge, choice, emptyBox, field, pageHead, searchField } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "History";

const SPANS = [["3600000", "the last hour"], ["86400000", "the last day"], ["604800000", "the last week"], ["", "all that is kept"]];

export function start(page) {
  let kinds = [];
  return page.live({
    seconds: 10,
    load: async (signal) => {
      const span = page.get("span");
      // Rounded, so that people who look at the same time share one answer.
      const since = span ? Math.floor((Date.now() - Number(span)) / 10_000) * 10_000 : "";
      const data = await get("/api/history", { topic: page.get("topic"), kind: page.get("kind"), search: page.get("search"), since_ms: since, page: page.get("page") }, { signal });
      kinds = data.kinds;
      return data;
    },
    render: (data) => list(page, data),
    frame: (inner, data) => [pageHead("History", { beside: data ? counted(data.total, "change") : [] }), bar(page, kinds), inner],
  });
}

function bar(page, kinds) {
  const topic = h("input", { name: "topic", value: page.get("topic"), placeholder: "all", autocomplete: "off", spellcheck: "false", onchange: (event) => page.set({ topic: event.target.value.trim(), page: "" }) });
  const chosen = page.get("kind");
  const all = chosen && !kinds.includes(chosen) ? [...kinds, chosen] : kinds;
  return h(
    "div.bar",
    { "data-key": "bar" },
    field("Search", searchField(page, "A part of the sentence")),
    field("Topic", topic),
    field("Kind", choice("kind", chosen, [["", "all"], ...all.map((kind) => [kind, kind])], (value) => page.set({ kind: value, page: "" }))),
    field("Since", choice("span", page.get("span"), SPANS, (value) => page.set({ span: value, page: "" }))),
  );
}

function list(page, data) {
  const isChosen = ["topic", "kind", "search", "span"].some((name) => page.get(name));
  return [
    table({
      page,
      caption: "History",
      rows: data.rows,
      paged: data,
      size: 200,
      keyOf: (row) => `${row.offset}/${row.kind}/${row.what}`,
      empty: isChosen ? emptyBox("Nothing like that happened", "The metadata log has no such change.") : emptyBox("Nothing happened", "The metadata log has no change to tell."),
      columns: [
        { key: "time", label: "When", head: true, cell: (row) => ago(row.time_ms) },
        { key: "kind", label: "Kind", cell: (row) => badge(row.kind) },
        { key: "what", label: "What", wide: true, sentence: true, cell: whatCell },
        { key: "who", label: "Who", cell: (row) => (row.who ? shown(row.who) : h("span.muted", {}, "\u2013")) },
        { key: "difference", label: "Before and after", wide: true, cell: difference },
        { key: "offset", label: "Offset", number: true, cell: (row) => count(row.offset) },
      ],
    }),
    data.who_unknown?.length ? h("ul.muted", { "aria-label": "Why some names are missing" }, data.who_unknown.map((each) => h("li", {}, shown(sentence(each))))) : null,
    data.begins_at > 0 ? h("p.muted", {}, `Of what came before offset ${count(data.begins_at)} of the metadata log, only the results are known.`) : null,
  ];
}

function whatCell(row) {
  // A sentence about a few names them already.
  const isNamed = row.subject_count === row.subjects.length && row.subjects.every((each) => row.what.includes(each));
  const many = row.subject_count > 1 && !isNamed ? h("span.small-note", {}, shown(row.subjects.slice(0, 6).join(", ")), row.subject_count > 6 ? ` and ${count(row.subject_count - 6)} more` : null) : null;
  return [shown(sentence(row.what)), many];
}

function difference(row) {
  if (absent(row.before) && absent(row.after)) return "\u2013";
  return [
    absent(row.before) ? null : h("div.before", {}, h("span.unseen", {}, "before: "), "\u2212 ", shown(row.before)),
    absent(row.after) ? null : h("div.after", {}, h("span.unseen", {}, "after: "), "+ ", shown(row.after)),
  ];
}
