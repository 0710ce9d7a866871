// One topic: the map of its replicas, its records, its configuration, and the groups that read it.

import { get, part } from "../code/api.js";
import { plain, shown } from "../code/dom.js";
import { absent, bytes, count, rate } from "../code/format.js";
import { badge, link, loadingBox, pageHead, tabs, tile, tiles } from "../code/parts.js";
import { configurationTab } from "./topic/configuration.js";
import { groupsTab } from "./topic/groups.js";
import { PARTITIONS, mapTab } from "./topic/map.js";

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
        get(base, { page: pageOfPartitions(page) }, { signal }),
        tab === "configuration" || tab === "groups" ? get(`${base}/${tab === "groups" ? "groups" : "configs"}`, {}, { signal }) : null,
      ]);
      return { topic, more, tab };
    },
    render: (data) => body(page, data),
    frame: (inner, data) => [head(name, data?.topic), tabs("tab", page.get("tab"), TABS, link(`/messages?topic=${part(name)}`, "Messages")), inner],
  });
}

// A partition that is asked for is on the page that has its number.
function pageOfPartitions(page) {
  const wanted = page.number("partition", null);
  if (page.get("tab")) return "";
  return wanted === null ? page.get("page") : Math.floor(wanted / PARTITIONS) + 1;
}

function head(name, topic) {
  return pageHead(shown(name), { above: link("/topics", "Topics"), beside: [topic?.is_internal ? badge("internal") : null] });
}

function body(page, { topic, more, tab }) {
  const now = page.get("tab");
  // The data of the tab that was left do not fit; those of the new one are on their way.
  if (now !== tab) return loadingBox();
  if (now === "configuration") return configurationTab(page, more);
  if (now === "groups") return groupsTab(page, more);
  return [figures(topic), mapTab(page, topic)];
}

function figures(topic) {
  const { skew } = topic;
  return tiles(
    tile("partitions", count(topic.total)),
    tile("replicas of each", count(topic.replication_factor)),
    tile("no leader", count(topic.offline), { tone: topic.offline ? "critical" : "" }),
    tile("under-replicated", count(topic.under_replicated), { tone: topic.under_replicated ? "warning" : "" }),
    tile("records in", rate(topic.records_per_second)),
    tile("size", bytes(topic.bytes), { note: "of one replica each" }),
    tile("skew of leaders", times(skew.leaders), { note: skew.away_from_preferred ? `${count(skew.away_from_preferred)} not preferred` : "all are preferred" }),
    tile("skew of bytes", times(skew.bytes), { note: "largest / mean" }),
  );
}

const times = (skew) => (absent(skew) ? "\u2013" : `${skew.toLocaleString("en", { maximumFractionDigits: 2 })} \u00d7`);
