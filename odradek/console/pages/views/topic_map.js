// The map of a topic: brokers down, partitions across, each cell a replica; and the same as a table with sizes and disks.

import { h, shown } from "../code/dom.js";
import { absent, bytes, count, counted } from "../code/format.js";
import { badge, choice, emptyBox, link, panelWith } from "../code/parts.js";
import { addressWith } from "../code/router.js";
import { pager, table } from "../code/table.js";

const SHOWN = 400;
const CELL = 17;

/** Return what a replica of a partition on a broker is: leader, in-sync, behind, elr, gone, or none. */
export function replicaState(partition, broker) {
  if (!partition.replicas.includes(broker)) return "none";
  if (partition.leader === broker) return "leader";
  if (partition.isr.includes(broker)) return isLeaderless(partition) ? "gone" : "in-sync";
  if (partition.elr?.includes(broker)) return "elr";
  return isLeaderless(partition) ? "gone" : "behind";
}

const isLeaderless = (partition) => absent(partition.leader) || partition.leader < 0;
const WORDS = { leader: "leads", "in-sync": "in sync", behind: "not in sync", elr: "not in sync, but eligible to lead (ELR)", gone: "of a partition without a leader", none: "has no replica" };

export function mapTab(page, topic) {
  const wrong = page.get("only") === "trouble";
  const all = wrong ? topic.partitions.filter((each) => isLeaderless(each) || each.isr.length < each.replicas.length) : topic.partitions;
  return [mapPanel(page, topic, all), partitionTable(page, all)];
}

function mapPanel(page, topic, all) {
  const brokers = [...new Set(topic.partitions.flatMap((each) => each.replicas))].sort((a, b) => a - b);
  const only = choice("only", page.get("only"), [["", "All partitions"], ["trouble", "Only partitions with trouble"]], (value) => page.set({ only: value, map: "", page: "" }));
  only.setAttribute("aria-label", "Which partitions");
  const pages = Math.max(1, Math.ceil(all.length / SHOWN));
  const at = Math.min(pages, Math.max(1, page.number("map", 1)));
  const part = all.slice((at - 1) * SHOWN, at * SHOWN);
  return panelWith(
    "Brokers \u00d7 partitions",
    only,
    part.length ? h("div.map", { tabindex: "0", role: "region", "aria-label": "Map of replicas" }, blocks(page, part, brokers)) : emptyBox("No partition is in trouble", "All partitions have a leader, and all replicas are in sync."),
    pages > 1 ? mapPager(at, pages, all.length) : null,
    h("div.legend", {}, Object.entries({ leader: "leader", "in-sync": "in sync", behind: "not in sync", elr: "eligible to lead (ELR)", gone: "no leader", none: "no replica" }).map(([state, word]) => h("span", {}, h("span.cell", { class: state }), word))),
  );
}

function mapPager(at, pages, length) {
  const links = pager(at, pages, length, SHOWN);
  links.setAttribute("aria-label", "Pages of the map");
  for (const each of links.querySelectorAll("a")) {
    const to = new URL(each.href).searchParams.get("page") ?? "";
    each.setAttribute("href", addressWith({ map: to }));
  }
  return links;
}

function blocks(page, partitions, brokers) {
  const room = Math.max(10, Math.floor((page.root.clientWidth - 150) / CELL / 10) * 10);
  const found = [];
  for (let at = 0; at < partitions.length; at += room) found.push(block(page, partitions.slice(at, at + room), brokers));
  return found;
}

function block(page, partitions, brokers) {
  const chosen = page.number("partition", -1);
  return h(
    "div.map-block",
    { "data-key": `block-${partitions[0].id}` },
    h("span.map-name", {}, ""),
    h("div.map-scale", { "aria-hidden": "true" }, partitions.map((each, at) => h("span", {}, at % 5 === 0 ? String(each.id) : ""))),
    brokers.map((broker) => [
      h("span.map-name", {}, `broker ${broker}`),
      h("div.map-row", { role: "img", "aria-label": spoken(partitions, broker) }, partitions.map((each) => cell(each, broker, each.id === chosen))),
    ]),
  );
}

function spoken(partitions, broker) {
  const states = Map.groupBy(partitions, (each) => replicaState(each, broker));
  const told = ["leader", "in-sync", "behind", "elr", "gone"].filter((state) => states.has(state)).map((state) => `${states.get(state).length} ${WORDS[state]}`);
  return `Broker ${broker}, partitions ${partitions[0].id} to ${partitions.at(-1).id}: ${told.join(", ") || "no replica"}`;
}

function cell(partition, broker, isChosen) {
  const state = replicaState(partition, broker);
  const props = { class: isChosen ? `${state} chosen` : state, title: `partition ${partition.id}, broker ${broker}: ${WORDS[state]}` };
  return h("span.cell", props);
}

function partitionTable(page, partitions) {
  const search = page.get("partition");
  const rows = search ? partitions.filter((each) => String(each.id) === search) : partitions;
  const mean = partitions.reduce((sum, each) => sum + (each.bytes ?? 0), 0) / (partitions.length || 1);
  return table({
    page,
    caption: "Partitions",
    rows,
    sorted: "id",
    keyOf: (row) => row.id,
    rowClass: (row) => (isLeaderless(row) ? "bad" : row.isr.length < row.replicas.length ? "doubtful" : ""),
    detail: (row) => (search === String(row.id) ? replicasOf(row) : null),
    empty: emptyBox("No partition to show"),
    columns: [
      { key: "id", label: "Partition", head: true, sort: (row) => row.id, cell: (row) => link(addressWith({ partition: search === String(row.id) ? "" : row.id }), String(row.id)) },
      { key: "leader", label: "Leader", sort: (row) => row.leader, cell: (row) => (isLeaderless(row) ? badge("none", "critical") : String(row.leader)) },
      { key: "replicas", label: "Replicas", cell: (row) => h("span.replicas", {}, row.replicas.map((broker) => replica(row, broker))) },
      { key: "start", label: "First offset", number: true, sort: (row) => row.log_start_offset, cell: (row) => count(row.log_start_offset) },
      { key: "end", label: "Next offset", number: true, sort: (row) => row.log_end_offset, cell: (row) => count(row.log_end_offset) },
      { key: "records", label: "Records", number: true, sort: held, cell: (row) => count(held(row)), title: "at most, by offsets" },
      { key: "bytes", label: "Size of a replica", number: true, sort: (row) => row.bytes, cell: (row) => sizeCell(row, mean) },
      { key: "read", label: h("span.unseen", {}, "Messages"), cell: (row) => link(`/messages?topic=${encodeURIComponent(page.parts[0])}&partition=${row.id}`, "read", h("span.unseen", {}, ` partition ${row.id}`)) },
    ],
  });
}

const held = (row) => (absent(row.log_end_offset) || absent(row.log_start_offset) ? null : row.log_end_offset - row.log_start_offset);

function sizeCell(row, mean) {
  const isLarge = mean > 1024 * 1024 && row.bytes > 2 * mean;
  return h("span", { class: isLarge ? "warning" : "", title: isLarge ? `${(row.bytes / mean).toFixed(1)} times the mean` : undefined }, bytes(row.bytes));
}

function replica(partition, broker) {
  const state = replicaState(partition, broker);
  return h("span.replica", { class: state, title: `broker ${broker}: ${WORDS[state]}` }, String(broker), state === "in-sync" ? null : h("span.unseen", {}, ` ${WORDS[state]}`));
}

function replicasOf(row) {
  const found = row.by_broker ?? [];
  if (!found.length) return h("span.muted", {}, "No broker says where its replica is.");
  return h(
    "table",
    { "aria-label": `Replicas of partition ${row.id}` },
    h("thead", {}, h("tr", {}, ["Broker", "Part", "Directory", "Size", "Behind"].map((name, at) => h("th", { scope: "col", class: at > 2 ? "number" : "" }, name)))),
    h("tbody", {}, found.map((each) => h(
      "tr",
      {},
      h("td", {}, String(each.broker)),
      h("td", {}, WORDS[replicaState(row, each.broker)]),
      h("td.wide", {}, each.directory ? shown(each.directory) : "\u2013"),
      h("td.number", {}, bytes(each.bytes)),
      h("td.number", {}, absent(each.lag) ? "\u2013" : each.lag ? counted(each.lag, "record") : "0"),
    ))),
  );
}

