// Transactions: which are open, since when, and whom they hold up.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, count, counted, duration } from "../code/format.js";
import { badge, choice, emptyBox, notice, pageHead, searchField, topicLink } from "../code/parts.js";
import { matching, table } from "../code/table.js";

export const title = () => "Transactions";

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/transactions", {}, { signal }),
    render: (data) => body(page, Array.isArray(data) ? data : data.rows ?? data.transactions),
    frame: (inner) => [pageHead("Transactions"), h("div.bar", { "data-key": "bar" }, searchField(page, "Search by transactional id"), which(page)), inner],
  });
}

const OVER = ["empty", "completecommit", "completeabort", "dead"];
const TONES = { ongoing: "info", preparecommit: "warning", prepareabort: "warning", completecommit: "ok", completeabort: "plain", empty: "plain" };
const WORDS = { ongoing: "open", preparecommit: "being committed", prepareabort: "being aborted", completecommit: "committed", completeabort: "aborted", empty: "none yet", prepareepochfence: "being fenced" };

const stateOf = (row) => String(row.state ?? "unknown").toLowerCase().replaceAll(/[_ ]/g, "");
const isOpen = (row) => !OVER.includes(stateOf(row));
const heldUp = (row) => (row.holds_up ?? []).reduce((sum, each) => sum + (each.records_behind ?? 0), 0);

function which(page) {
  const control = choice("which", page.get("which"), [["", "All"], ["open", "Open ones"], ["hanging", "Hanging ones"]], (value) => page.set({ which: value, page: "" }));
  control.setAttribute("aria-label", "Which transactions");
  return control;
}

function body(page, all) {
  const chosen = page.get("which");
  const rows = matching(all, page.get("search"), (row) => [row.transactional_id, row.producer_id]).filter((row) => !chosen || (chosen === "hanging" ? row.is_hanging : isOpen(row)));
  const hanging = all.filter((row) => row.is_hanging);
  return [
    hanging.length
      ? notice("critical", [h("strong", {}, `${counted(hanging.length, "transaction")} ${hanging.length === 1 ? "hangs" : "hang"}.`), " Nobody will end it by itself, and readers of committed records wait. ", h("code", {}, "odradek txn abort"), " ends it."])
      : null,
    list(page, rows, all),
  ];
}

function list(page, rows, all) {
  const empty = all.length
    ? emptyBox("No transaction is like that")
    : emptyBox("There is no transaction", "Producers with a transactional.id appear here, and open transactions that nobody coordinates any more.");
  return table({
    page,
    caption: "Transactions",
    rows,
    sorted: "-age",
    keyOf: (row) => `${row.transactional_id}/${row.producer_id}`,
    rowClass: (row) => (row.is_hanging ? "bad" : ""),
    empty,
    columns: [
      { key: "id", label: "Transactional id", head: true, wide: true, sort: (row) => row.transactional_id, cell: (row) => (absent(row.transactional_id) ? h("span.null", {}, "unknown") : shown(row.transactional_id)) },
      { key: "producer", label: "Producer id", number: true, sort: (row) => row.producer_id, cell: (row) => (absent(row.producer_id) ? "\u2013" : String(row.producer_id)) },
      { key: "state", label: "State", sort: stateOf, cell: (row) => h("span.badges", {}, badge(WORDS[stateOf(row)] ?? stateOf(row), TONES[stateOf(row)] ?? "plain"), row.is_hanging ? badge("hangs", "critical") : null) },
      { key: "age", label: "Age", number: true, sort: (row) => row.age_ms, cell: (row) => duration(row.age_ms) },
      { key: "timeout", label: "Timeout", number: true, sort: (row) => row.timeout_ms, cell: (row) => duration(row.timeout_ms), title: "after this time the coordinator aborts it" },
      { key: "coordinator", label: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => (absent(row.coordinator) ? "\u2013" : String(row.coordinator)) },
      { key: "partitions", label: "Writes to", wide: true, cell: partitionsCell },
      { key: "holds", label: "Holds up", number: true, sort: heldUp, cell: holdsCell, title: "records behind the last stable offset, which readers of committed records do not get yet" },
    ],
  });
}

function partitionsCell(row) {
  const all = row.partitions;
  if (absent(all)) return "\u2013";
  if (!Array.isArray(all)) return counted(all, "partition");
  if (!all.length) return h("span.muted", {}, "nothing");
  return [all.slice(0, 4).map((each) => h("div", {}, partitionName(each))), all.length > 4 ? h("span.muted", {}, `and ${all.length - 4} more`) : null];
}

function partitionName(each) {
  if (typeof each === "string") return shown(each);
  return [topicLink(each.topic), h("span.muted", {}, ` ${each.partition}`)];
}

function holdsCell(row) {
  const held = row.holds_up ?? [];
  if (!held.length) return h("span.muted", {}, "nobody");
  return held.slice(0, 3).map((each) => h("div", {}, `${counted(each.records_behind, "record")} of `, topicLink(each.topic), ` ${each.partition}`, h("span.small-note", {}, `readers stand at ${count(each.last_stable_offset)}`)));
}
