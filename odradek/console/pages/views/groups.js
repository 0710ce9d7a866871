// The groups of all kinds, with how far they are behind, in records and in time.

import { get } from "../code/api.js";
import { h } from "../code/dom.js";
import { absent, count, counted, duration } from "../code/format.js";
import { badge, choice, emptyBox, groupLink, pageHead, searchField } from "../code/parts.js";
import { matching, table } from "../code/table.js";

export const title = () => "Groups";

const TYPES = { consumer: "consumer (new protocol)", classic: "classic", share: "share", streams: "streams" };
const TONES = { stable: "ok", empty: "plain", dead: "plain", assigning: "info", reconciling: "info", preparingrebalance: "warning", completingrebalance: "warning", unknown: "warning" };
const WORDS = { preparingrebalance: "rebalancing", completingrebalance: "rebalancing" };

/** Return the state of a group as a badge. */
export function groupState(row) {
  const state = String(row.state ?? "unknown").toLowerCase().replaceAll(/[_ ]/g, "");
  return badge(WORDS[state] ?? state, TONES[state] ?? "plain");
}

export const groupType = (row) => (absent(row.type) ? "\u2013" : String(row.type).toLowerCase());

/** Return how a lag changes: grows, falls, or stands. */
export function trendOf(perSecond) {
  if (absent(perSecond)) return "\u2013";
  const size = Math.abs(perSecond);
  if (size < 0.05) return h("span.muted", {}, "steady");
  const written = `${size < 10 ? size.toFixed(1) : count(size)}/s`;
  return perSecond > 0 ? h("span.warning", {}, `\u25b2 grows ${written}`) : h("span.ok", {}, `\u25bc falls ${written}`);
}

/** Return when a lag will be gone. */
export function zeroIn(row) {
  if (row.lag === 0) return h("span.muted", {}, "caught up");
  if (absent(row.zero_in_ms)) return row.trend_per_second > 0.05 ? h("span.warning", {}, "never at this pace") : "\u2013";
  return duration(row.zero_in_ms);
}

export function start(page) {
  return page.live({
    seconds: 5,
    load: (signal) => get("/api/groups", {}, { signal }),
    render: (data) => list(page, rowsOf(data)),
    frame: (body, data) => [pageHead("Groups", { beside: data ? counted(rowsOf(data).length, "group") : [] }), h("div.bar", { "data-key": "bar" }, searchField(page, "Search groups by name"), typeChoice(page)), body],
  });
}

const rowsOf = (data) => (Array.isArray(data) ? data : data.rows ?? data.groups);

function typeChoice(page) {
  const control = choice("type", page.get("type"), [["", "All types"], ...Object.entries(TYPES)], (value) => page.set({ type: value, page: "" }));
  control.setAttribute("aria-label", "Type");
  return control;
}

function list(page, groups) {
  const type = page.get("type");
  const rows = matching(groups, page.get("search"), (row) => [row.id, row.coordinator]).filter((row) => !type || groupType(row) === type);
  const empty = groups.length
    ? emptyBox("No group is like that", "The search looks for a part of the name.")
    : emptyBox("There is no group yet", "A group comes into being when its first member joins: ", h("code", {}, "odradek consume words --group readers"));
  return table({
    page,
    caption: "Groups",
    rows,
    sorted: "id",
    keyOf: (row) => row.id,
    empty,
    columns: [
      { key: "id", label: "Group", head: true, wide: true, sort: (row) => row.id, cell: (row) => groupLink(row.id) },
      { key: "type", label: "Type", sort: groupType, cell: groupType },
      { key: "state", label: "State", sort: (row) => row.state, cell: groupState },
      { key: "members", label: "Members", number: true, sort: membersOf, cell: (row) => count(membersOf(row)) },
      { key: "lag", label: "Lag", number: true, sort: lagOf, cell: (row) => (absent(lagOf(row)) ? "\u2013" : counted(lagOf(row), "record")) },
      { key: "behind", label: "Behind", number: true, sort: behindOf, cell: (row) => (lagOf(row) === 0 ? "0 s" : duration(behindOf(row))), title: "how old the oldest record is that is not yet read" },
      { key: "trend", label: "Trend", number: true, sort: (row) => row.trend_per_second, cell: (row) => trendOf(row.trend_per_second) },
      { key: "zero", label: "Caught up in", number: true, sort: (row) => row.zero_in_ms, cell: (row) => zeroIn({ ...row, lag: lagOf(row) }) },
      { key: "coordinator", label: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => (absent(row.coordinator) ? "\u2013" : String(row.coordinator)) },
    ],
  });
}

const membersOf = (row) => (Array.isArray(row.members) ? row.members.length : row.members);

function lagOf(row) {
  if (row.lag !== undefined) return row.lag;
  const known = (row.offsets ?? []).map((each) => each.lag).filter((lag) => !absent(lag));
  return known.length ? known.reduce((sum, lag) => sum + lag, 0) : null;
}

function behindOf(row) {
  if (row.behind_ms !== undefined) return row.behind_ms;
  const known = (row.offsets ?? []).map((each) => each.behind_ms).filter((ms) => !absent(ms));
  return known.length ? Math.max(...known) : null;
}
