// One topic: the map of its replicas, its records, its configuration, and the groups that read it.

import { get, part } from "../code/api.js";
import { h, plain, shown } from "../code/dom.js";
import { bytes, count, rate } from "../code/format.js";
import { badge, link, pageHead, tabs, tile, tiles } from "../code/parts.js";
import { configurationTab } from "./topic_configuration.js";
import { groupsTab } from "./topic_groups.js";
import { mapTab } from "./topic_map.js";

export const title = (page) => plain(page.parts[0], 80);

const TABS = [["", "Map"], ["configuration", "Configuration"], ["groups", "Groups"]];

export function start(page) {
  const name = page.parts[0];
  const base = `/api/topics/${part(name)}`;
  return page.live({
    seconds: 5,
    load: async (signal) => {
      const tab = page.get("tab");
      const [topic, more] = await Promise.all([
        get(base, {}, { signal }),
        tab === "configuration" || tab === "groups" ? get(`${base}/${tab === "groups" ? "groups" : "configs"}`, {}, { signal }) : null,
      ]);
      return { topic, more, tab };
    },
    render: (data) => body(page, data),
    frame: (inner, data) => [head(name, data?.topic), tabs("tab", page.get("tab"), TABS, link(`/messages?topic=${encodeURIComponent(name)}`, "Messages")), inner],
  });
}

function head(name, topic) {
  return pageHead(shown(name), {
    above: link("/topics", "Topics"),
    beside: [topic?.is_internal ? badge("internal") : null],
  });
}

function body(page, { topic, more, tab }) {
  const now = page.get("tab");
  if (now !== tab && now) return null;
  if (now === "configuration") return configurationTab(page, more);
  if (now === "groups") return groupsTab(page, more);
  return [figures(topic), mapTab(page, topic)];
}

function figures(topic) {
  const all = topic.partitions;
  const behind = all.filter((each) => each.isr.length < each.replicas.length).length;
  const offline = all.filter((each) => each.leader === null || each.leader < 0).length;
  return tiles(
    tile("partitions", count(all.length)),
    tile("replicas of each", count(topic.replication_factor ?? all[0]?.replicas.length)),
    tile("without a leader", count(offline), { tone: offline ? "critical" : "" }),
    tile("under-replicated", count(behind), { tone: behind ? "warning" : "" }),
    tile("records", count(all.reduce((sum, each) => sum + Math.max(0, (each.log_end_offset ?? 0) - (each.log_start_offset ?? 0)), 0)), { note: "at most, by offsets" }),
    tile("size on disks", bytes(topic.bytes)),
    topic.records_per_second === undefined ? null : tile("records in", rate(topic.records_per_second)),
    topic.skew === undefined || topic.skew === null ? null : tile("skew", skewText(topic.skew), { note: "largest / mean" }),
  );
}

const skewText = (skew) => (typeof skew === "number" ? `${skew.toLocaleString("en", { maximumFractionDigits: 2 })} \u00d7` : String(skew));

