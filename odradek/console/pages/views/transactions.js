// Transactions: which are open, since when, and whom they hold up.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, count, counted, duration, sentence } from "../code/format.js";
import { badge, emptyBox, groupLink, notice, pageHead, searchField, topicLink } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Transactions";

const PROSPECTS = {
  open: ["open", "info", "Its producer or its timeout ends it."],
  prepared: ["prepared", "warning", "Only its producer or an operator can end it."],
  ending: ["ending", "info", "Its markers are on their way."],
  hanging: ["hangs", "critical", "It will never end by itself."],
  none: ["none open", "plain", "No transaction of this id is open."],
};

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/transactions", { search: page.get("search"), all: page.get("all"), page: page.get("page") }, { signal }),
    render: (data) => body(page, data),
    frame: (inner, data) => [
      pageHead("Transactions", { beside: data ? [counted(data.total, "transaction"), ` of ${counted(data.ids, "transactional id")}`] : [] }),
      h("div.bar", { "data-key": "bar" }, searchField(page, "Search by transactional id"), allSwitch(page)),
      inner,
    ],
  });
}

function allSwitch(page) {
  const box = h("input", { type: "checkbox", checked: page.get("all") === "1", onchange: (event) => page.set({ all: event.target.checked ? "1" : "", page: "" }) });
  return h("label.check", {}, box, "Ids without an open transaction, too");
}

const heldUp = (row) => row.holds_up.reduce((sum, each) => sum + (each.records_behind ?? 0), 0);

function body(page, data) {
  const hanging = data.rows.filter((row) => row.is_hanging);
  return [
    hanging.length
      ? notice("critical", [h("strong", {}, `${counted(hanging.length, "transaction")} ${hanging.length === 1 ? "hangs" : "hang"}.`), " Readers of committed records wait until somebody ends it: ", h("code", {}, "odradek txn abort"), "."])
      : null,
    data.errors.length ? notice("warning", ["Something is missing: ", data.errors.slice(0, 3).map((each) => h("div", {}, shown(sentence(each))))]) : null,
    list(page, data),
  ];
}

function list(page, data) {
  const empty = page.get("search")
    ? emptyBox("No transaction is like that")
    : emptyBox("There is no open transaction", "Open, prepared and hanging transactions appear here, with the readers that wait for them.");
  return table({
    page,
    caption: "Transactions",
    rows: data.rows,
    paged: data,
    size: 200,
    sorted: "-age",
    keyOf: (row) => `${row.transactional_id}/${row.producer_id}`,
    rowClass: (row) => (row.is_hanging ? "bad" : row.is_late ? "doubtful" : ""),
    empty,
    columns: [
      { key: "id", label: "Transactional id", head: true, wide: true, sort: (row) => row.transactional_id, cell: (row) => (absent(row.transactional_id) ? h("span.null", {}, "unknown") : shown(row.transactional_id)) },
      { key: "producer", label: "Producer id", number: true, sort: (row) => row.producer_id, cell: (row) => String(row.producer_id) },
      { key: "state", label: "State", sort: (row) => row.prospect, cell: stateCell },
      { key: "age", label: "Age", number: true, sort: (row) => row.age_ms, cell: (row) => (row.prospect === "none" ? "\u2013" : duration(row.age_ms)) },
      { key: "timeout", label: "Timeout", number: true, sort: (row) => row.timeout_ms, cell: (row) => duration(row.timeout_ms), title: "after this time the coordinator aborts it" },
      { key: "coordinator", label: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => (absent(row.coordinator) ? "none" : `broker ${row.coordinator}`) },
      { key: "partitions", label: "Writes to", wide: true, cell: partitionsCell },
      { key: "holds", label: "Holds up", wide: true, sort: heldUp, cell: holdsCell, title: "records behind the last stable offset, which readers of committed records do not get yet" },
    ],
  });
}

function stateCell(row) {
  const [word, tone, meaning] = PROSPECTS[row.prospect] ?? [row.prospect, "plain", ""];
  return h("span.badges", {}, badge(word, tone, `${meaning} ${row.state ? `Kafka names its state ${row.state}.` : ""}`.trim()), row.is_late ? badge("late", "warning", "It is older than its timeout.") : null);
}

function partitionsCell(row) {
  if (!row.partition_count) return h("span.muted", {}, "nothing");
  const more = row.partition_count - Math.min(4, row.partitions.length);
  return [row.partitions.slice(0, 4).map((each) => h("div", {}, topicLink(each.topic), h("span.muted", {}, ` ${each.partition}`))), more > 0 ? h("span.muted", {}, `and ${count(more)} more`) : null];
}

function holdsCell(row) {
  const held = row.holds_up;
  if (!held.length) return h("span.muted", {}, "nobody");
  return held.slice(0, 3).map((each) =>
    h(
      "div",
      {},
      absent(each.records_behind) ? "records" : counted(each.records_behind, "record"),
      " of ",
      topicLink(each.topic),
      ` ${each.partition}`,
      h("span.small-note", {}, each.groups.length ? ["wait: ", each.groups.slice(0, 3).map((group, at) => [at ? ", " : "", groupLink(group)]), ` at offset ${count(each.last_stable_offset)}`] : `readers wait at offset ${count(each.last_stable_offset)}`),
    ),
  );
}
