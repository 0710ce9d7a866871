// One group: its members with what each reads, and its lag by partition, over time.

import { get, part } from "../code/api.js";
import { chart, series } from "../code/chart.js";
import { h, plain, shown } from "../code/dom.js";
import { absent, count, rate, short } from "../code/format.js";
import { badge, emptyBox, link, pageHead, panel, panelWith, tile, tiles, topicLink } from "../code/parts.js";
import { table } from "../code/table.js";
import { behindOf, groupState, groupType, trendOf, unknownLag, whyUnknown, zeroIn } from "./groups.js";

export const title = (page) => plain(page.parts[0], 80);

const LINES = ["--line-1", "--line-2", "--line-3", "--line-4"];

export function start(page) {
  const id = page.parts[0];
  return page.live({
    seconds: 5,
    load: async (signal) => {
      const group = await get(`/api/groups/${part(id)}`, { page: page.get("page") }, { signal });
      sample(id, group);
      return group;
    },
    render: (group) => body(page, group),
    frame: (inner, group) => [pageHead(shown(id), { above: link("/groups", "Groups"), beside: group ? [groupType(group), groupState(group)] : [] }), inner],
  });
}

// By topic, if all partitions are on this page; otherwise all in one.
function sample(id, group) {
  const byTopic = new Map();
  if (group.pages > 1) {
    if (!absent(group.lag)) byTopic.set("all topics", group.lag);
  }
  else for (const each of group.offsets) if (!absent(each.lag)) byTopic.set(each.topic, (byTopic.get(each.topic) ?? 0) + each.lag);
  series(`group ${id}`).add(Date.now(), byTopic);
}

function body(page, group) {
  const { lag, trend } = group;
  const growth = trend ? trend.written_per_second - trend.read_per_second : null;
  const whole = { lag, behind_ms: group.behind_ms, trend_per_second: growth, zero_in_ms: trend?.zero_in_ms };
  return [
    tiles(
      tile("members", count(group.member_count)),
      tile("lag", group.unknown_partitions ? unknownLag(group) : short(lag), { note: group.unknown_partitions ? whyUnknown(group) : "records" }),
      tile("behind", behindOf(group), { note: "oldest unread record" }),
      tile("read", rate(trend?.read_per_second), { note: trend ? `written ${rate(trend.written_per_second)}` : null }),
      tile("trend", trendOf(whole)),
      tile("caught up in", zeroIn(whole)),
      tile("coordinator", `broker ${group.coordinator}`),
    ),
    lagChart(page.parts[0], group),
    members(page, group),
    offsets(page, group),
  ];
}

function lagChart(id, group) {
  const points = series(`group ${id}`);
  if (!group.offsets.length) return null;
  const latest = (name) => points.columns.get(name)?.at(-1) ?? 0;
  const names = [...points.columns.keys()].sort((one, other) => latest(other) - latest(one)).slice(0, LINES.length);
  names.sort();
  const lines = names.map((name, at) => [name, plain(name, 40), LINES[at]]);
  const drawn = points.times.length < 2 ? h("div.chart-place", {}, emptyBox("Measuring", "The chart begins with the second sample.")) : h("div.chart-place", {}, chart({ key: "lag", title: "Lag in records", data: points, lines, written: (value) => short(value), height: 150 }));
  const note = points.columns.size > LINES.length ? `the ${LINES.length} largest of ${points.columns.size} topics, since this page was opened` : "in records, since this page was opened";
  return panelWith("Lag by topic", note, drawn);
}

function members(page, group) {
  return panelWith(
    "Members",
    group.protocol ? ["assigned by ", shown(group.protocol)] : [],
    table({
      page,
      caption: "Members",
      rows: group.members,
      keyOf: (row) => row.member_id,
      sorted: "client",
      empty: emptyBox("The group has no member", "Nobody reads for it now. Its offsets stay until they expire."),
      columns: [
        { key: "client", label: "Client", head: true, wide: true, cell: (row) => shown(row.client_id) },
        { key: "host", label: "Host", cell: (row) => shown(row.host.replace(/^\//, "")) },
        { key: "member", label: "Member id", wide: true, cell: (row) => h("span.mono", {}, shown(row.member_id), row.instance_id ? h("span.small-note", {}, "static: ", shown(row.instance_id)) : null) },
        { key: "reads", label: "Reads", wide: true, cell: (row) => [assignment(row.assignment), row.is_moving ? badge("gets others", "info") : null] },
      ],
    }),
  );
}

function assignment(all) {
  if (!all.length) return h("span.muted", {}, "nothing");
  return all.map((each) => h("div", {}, topicLink(each.topic), h("span.muted", {}, ` ${ranges(each.partitions)}`)));
}

/** Return numbers as ranges: 0-3, 7. */
export function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const found = [];
  for (const number of sorted) {
    const last = found.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? String(first) : `${first}\u2013${last}`)).join(", ");
}

function offsets(page, group) {
  const clients = new Map(group.members.map((member) => [member.member_id, member.client_id]));
  return panel(
    "Offsets",
    table({
      page,
      caption: "Offsets",
      rows: group.offsets,
      paged: group.pages > 1 ? group : null,
      size: 500,
      sorted: "topic",
      keyOf: (row) => `${row.topic}/${row.partition}`,
      empty: emptyBox("No offset is committed", "The group has not said yet how far it has read."),
      columns: [
        { key: "topic", label: "Topic", head: true, wide: true, sort: (row) => `${row.topic} ${row.partition}`, cell: (row) => topicLink(row.topic) },
        { key: "partition", label: "Partition", number: true, sort: (row) => row.partition, cell: (row) => String(row.partition) },
        { key: "committed", label: "Committed", number: true, sort: (row) => row.committed, cell: (row) => count(row.committed) },
        { key: "end", label: "Log end", number: true, sort: (row) => row.log_end_offset, cell: (row) => count(row.log_end_offset) },
        { key: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: (row) => (row.error ? h("span.warning", { title: plain(row.error) }, "not known") : count(row.lag)) },
        { key: "behind", label: "Behind", number: true, sort: (row) => row.behind_ms, cell: behindOf },
        { key: "trend", label: "Trend", number: true, sort: (row) => row.trend_per_second, cell: trendOf },
        { key: "zero", label: "Caught up in", number: true, sort: (row) => row.zero_in_ms, cell: zeroIn },
        { key: "reader", label: "Read by", cell: (row) => (absent(row.member_id) ? h("span.muted", {}, "nobody") : shown(clients.get(row.member_id) ?? row.member_id)) },
      ],
    }),
  );
}

