// The configuration of a topic: each key with where its value comes from, and how it differs from the default.

import { h, shown } from "../../code/dom.js";
import { absent } from "../../code/format.js";
import { badge, choice, emptyBox, searchField } from "../../code/parts.js";
import { matching, table } from "../../code/table.js";

const SOURCES = { topic_config: "this topic", dynamic_broker_config: "one broker", dynamic_default_broker_config: "all brokers", static_broker_config: "the broker's file", default_config: "default" };

export function configurationTab(page, configs) {
  const differing = configs.filter((each) => !each.is_default);
  const all = page.get("which") === "all" || !differing.length;
  const rows = matching(all ? configs : differing, page.get("search"), (row) => [row.name, row.value, row.documentation]);
  const which = choice("which", all ? "all" : "", [["", `Different from the default (${differing.length})`], ["all", `All keys (${configs.length})`]], (value) => page.set({ which: value, page: "" }));
  which.setAttribute("aria-label", "Which keys");
  return [
    h("div.bar", { "data-key": "bar" }, searchField(page, "Search keys"), which, differing.length ? null : h("span.muted", {}, "All keys have their defaults.")),
    table({
      page,
      caption: "Configuration",
      rows,
      sorted: "name",
      size: 200,
      keyOf: (row) => row.name,
      empty: emptyBox("No key to show", "No key has this text in its name, value or description."),
      columns: [
        { key: "name", label: "Key", head: true, sort: (row) => row.name, wide: true, cell: (row) => [h("code", {}, shown(row.name)), row.documentation ? h("span.small-note.documentation", {}, shown(row.documentation)) : null] },
        { key: "value", label: "Value", sort: (row) => row.value, cell: valueCell },
        { key: "default", label: "Default", cell: (row) => written(row, row.default) },
        { key: "source", label: "From", sort: (row) => row.source, cell: (row) => badge(SOURCES[row.source] ?? row.source.replaceAll("_", " "), row.is_default ? "plain" : "info") },
      ],
    }),
  ];
}

const text = (value) => (absent(value) ? "\u2013" : value === "" ? "(empty)" : shown(value));

function valueCell(row) {
  if (row.is_secret) return h("span.null", {}, "secret");
  return written(row, row.value, row.is_default ? "" : "after");
}

function written({ name }, value, class_ = "") {
  const told = human(name, value);
  return [h("code", { class: class_ }, text(value)), told ? h("span.small-note", {}, told) : null];
}

const SIZES = [[1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]];
const TIMES = [[86_400_000, "day"], [3_600_000, "hour"], [60_000, "minute"], [1000, "second"]];

function human(name, value) {
  if (!/^\d{4,}$/.test(value ?? "")) return null;
  const number = Number(value);
  if (number >= 2 ** 53) return "no limit";
  const table_ = name.endsWith(".bytes") ? SIZES : name.endsWith(".ms") ? TIMES : [];
  const [size, unit] = table_.find(([each]) => number >= each) ?? [];
  if (!size) return null;
  const amount = number / size;
  const written = amount.toLocaleString("en", { maximumFractionDigits: 1 });
  return table_ === TIMES ? (amount === 1 ? `1 ${unit}` : `${written} ${unit}s`) : `${written} ${unit}`;
}

