// The groups of all kinds, with how far they are behind, in records and in time.

import { get } from "../code/api.js";
import { h, plain } from "../code/dom.js";
import { absent, count, counted, duration } from "../code/format.js";
import { badge, choice, emptyBox, groupLink, pageHead, searchField } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Groups";

const TYPES = [["", "All types"], ["classic", "Classic"], ["consumer", "Consumer (KIP-848)"], ["share", "Share"], ["streams", "Streams"]];
const TONES = { Stable: "ok", Empty: "plain", Dead: "plain", Assigning: "info", Reconciling: "info", PreparingRebalance: "warning", CompletingRebalance: "warning" };
const WORDS = { PreparingRebalance: "rebalancing", CompletingRebalance: "rebalancing" };

/** Return the state of a group as a badge. */
export const groupState = (row) => badge(WORDS[row.state] ?? String(row.state).toLowerCase(), TONES[row.state] ?? "plain", row.state);

export const groupType = (row) => row.type;

// A reader that is hardly behind keeps up, whatever its lag does in a moment.
const KEEPS_UP_MS = 2000;
const keepsUp = (row) => !absent(row.behind_ms) && row.behind_ms < KEEPS_UP_MS;

/** Return how a lag changes: grows, falls, or stands. */
export function trendOf(row) {
  const perSecond = row.trend_per_second;
  if (absent(perSecond)) return "\u2013";
  const size = Math.abs(perSecond);
  if (size < 0.05) return h("span.muted", {}, "steady");
  const written = `${size < 10 ? size.toFixed(1) : count(size)}/s`;
  return perSecond > 0 ? h("span", { class: keepsUp(row) ? "" : "warning" }, `\u25b2 grows ${written}`) : h("span.ok", {}, `\u25bc falls ${written}`);
}

/** Return when a lag will be gone. */
export function zeroIn(row) {
  if (row.lag === 0) return h("span.muted", {}, "caught up");
  if (keepsUp(row)) return h("span.ok", {}, "keeps up");
  if (absent(row.zero_in_ms)) return row.trend_per_second > 0.05 ? h("span.warning", {}, "never at this pace") : "\u2013";
  return duration(row.zero_in_ms);
}

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/groups", { search: page.get("search"), type: page.get("type"), page: page.get("page") }, { signal }),
    render: (data) => list(page, data),
    frame: (body, data) => [pageHead("Groups", { beside: data ? counted(data.total, "group") : [] }), h("div.bar", { "data-key": "bar" }, searchField(page, "Search groups by name"), typeChoice(page)), body],
  });
}

function typeChoice(page) {
  const control = choice("type", page.get("type"), TYPES, (value) => page.set({ type: value, page: "" }));
  control.setAttribute("aria-label", "Type");
  return control;
}

function list(page, data) {
  const empty =
    page.get("search") || page.get("type")
      ? emptyBox("No group is like that", "The search looks for a part of the name.")
      : emptyBox("There is no group yet", "A group comes into being when its first member joins: ", h("code", {}, "odradek consume words --group readers"));
  return table({
    page,
    caption: "Groups",
    rows: data.rows,
    paged: data,
    sorted: "id",
    keyOf: (row) => row.id,
    empty,
    columns: [
      { key: "id", label: "Group", head: true, wide: true, sort: (row) => row.id, cell: (row) => groupLink(row.id) },
      { key: "type", label: "Type", sort: groupType, cell: groupType },
      { key: "state", label: "State", sort: (row) => row.state, cell: groupState },
      { key: "members", label: "Members", number: true, sort: (row) => row.members, cell: (row) => count(row.members) },
      { key: "topics", label: "Topics", number: true, sort: (row) => row.topics, cell: (row) => count(row.topics) },
      { key: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: lagCell },
      { key: "behind", label: "Behind", number: true, sort: (row) => row.behind_ms, cell: behindOf, title: "how old the oldest record is that is not yet read" },
      { key: "coordinator", label: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => `broker ${row.coordinator}` },
    ],
  });
}

/** Return the lag of a group in records. */
export function lagCell(row) {
  if (row.error) return h("span.warning", { title: plain(row.error) }, "not known");
  if (row.unknown_partitions) return unknownLag(row);
  return absent(row.lag) ? "\u2013" : counted(row.lag, "record");
}

/** Return the word for a lag of which partitions are not known. */
export const unknownLag = (row) => h("span.warning", { title: plain(whyUnknown(row)) }, "unknown");

/** Return of how many partitions a lag is not known, and why. */
export const whyUnknown = (row) => `${counted(row.unknown_partitions, "partition")} without a committed offset, or without an answer`;

/** Return how far a group is behind in time. */
export function behindOf(row) {
  if (row.lag === 0) return "0 s";
  return absent(row.behind_ms) && (row.lag || row.unknown_partitions) ? "unknown" : duration(row.behind_ms);
}
