// The map of a topic: brokers down, partitions across, each cell a replica; and the same as a table with sizes and disks.

import { part } from "../../code/api.js";
import { h, shown } from "../../code/dom.js";
import { absent, bytes, count, counted } from "../../code/format.js";
import { badge, choice, emptyBox, link, panelWith } from "../../code/parts.js";
import { addressWith } from "../../code/router.js";
import { pager, table } from "../../code/table.js";

/** The partitions of one page of the server. */
export const PARTITIONS = 200;
const CELL = 17;

/** Return what a replica of a partition on a broker is: leader, in-sync, behind, elr, adding, gone, or none. */
export function replicaState(partition, broker) {
  if (!partition.replicas.includes(broker)) return "none";
  if (partition.adding.includes(broker) && !partition.isr.includes(broker)) return "adding";
  if (partition.leader === broker) return "leader";
  if (partition.isr.includes(broker)) return isLeaderless(partition) ? "gone" : "in-sync";
  if (partition.elr?.includes(broker)) return "elr";
  return isLeaderless(partition) ? "gone" : "behind";
}

const isLeaderless = (partition) => absent(partition.leader) || partition.leader < 0;
const WORDS = { leader: "leads", "in-sync": "in sync", behind: "not in sync", elr: "not in sync, but eligible to lead (ELR)", adding: "is being added", gone: "of a partition without a leader", none: "has no replica" };

export function mapTab(page, topic) {
  const wrong = page.get("only") === "trouble";
  const shown_ = wrong ? topic.partitions.filter((each) => isLeaderless(each) || each.isr.length < each.replicas.length) : topic.partitions;
  return [mapPanel(page, topic, shown_), partitionTable(page, topic, shown_)];
}

function mapPanel(page, topic, partitions) {
  const brokers = [...new Set(topic.partitions.flatMap((each) => each.replicas))].sort((a, b) => a - b);
  const many = topic.pages > 1;
  return panelWith(
    "Brokers \u00d7 partitions",
    many ? [jump(page), `partitions ${count(topic.partitions[0]?.id ?? 0)} to ${count(topic.partitions.at(-1)?.id ?? 0)} of ${count(topic.total)}`] : whichPartitions(page),
    partitions.length ? h("div.map", { tabindex: "0", role: "region", "aria-label": "Map of replicas" }, blocks(page, partitions, brokers)) : emptyBox("No partition is in trouble", "All partitions have a leader, and all replicas are in sync."),
    many ? pager(topic.page, topic.pages, topic.total, PARTITIONS, "Pages of the map") : null,
    h("div.legend", {}, LEGEND.map(([state, word]) => h("span", {}, h("span.cell", { class: state }), word))),
  );
}

const LEGEND = [["leader", "leader"], ["in-sync", "in sync"], ["behind", "not in sync"], ["elr", "eligible to lead (ELR)"], ["adding", "being added"], ["gone", "no leader"], ["none", "no replica"]];

function whichPartitions(page) {
  const only = choice("only", page.get("only"), [["", "All partitions"], ["trouble", "Only partitions with trouble"]], (value) => page.set({ only: value, page: "" }));
  only.setAttribute("aria-label", "Which partitions");
  return only;
}

function jump(page) {
  const control = h("input", { name: "partition", inputmode: "numeric", pattern: "[0-9]+", placeholder: "number", value: page.get("partition"), autocomplete: "off", size: "7" });
  return h("form.bar", { onsubmit: (event) => (event.preventDefault(), page.set({ partition: new FormData(event.target).get("partition").trim(), page: "" })) }, h("label.check", {}, "Partition", control), h("button.quiet", { type: "submit" }, "Show"));
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
  const told = ["leader", "in-sync", "behind", "elr", "adding", "gone"].filter((state) => states.has(state)).map((state) => `${states.get(state).length} ${WORDS[state]}`);
  return `Broker ${broker}, partitions ${partitions[0].id} to ${partitions.at(-1).id}: ${told.join(", ") || "no replica"}`;
}

function cell(partition, broker, isChosen) {
  const state = replicaState(partition, broker);
  const props = { class: isChosen ? `${state} chosen` : state, title: `partition ${partition.id}, broker ${broker}: ${WORDS[state]}` };
  return h("span.cell", props);
}

function partitionTable(page, topic, partitions) {
  const search = page.get("partition");
  const mean = partitions.reduce((sum, each) => sum + (each.bytes ?? 0), 0) / (partitions.length || 1);
  return table({
    page,
    caption: "Partitions",
    rows: partitions,
    paged: topic.pages > 1 ? topic : null,
    size: PARTITIONS,
    sorted: "id",
    keyOf: (row) => row.id,
    rowClass: (row) => [search === String(row.id) ? "chosen" : "", isLeaderless(row) ? "bad" : row.isr.length < row.replicas.length ? "doubtful" : ""].join(" ").trim(),
    detail: (row) => (search === String(row.id) ? replicasOf(row) : null),
    empty: emptyBox("No partition to show"),
    columns: [
      { key: "id", label: "Partition", head: true, sort: (row) => row.id, cell: (row) => link(addressWith({ partition: search === String(row.id) ? "" : row.id }), String(row.id)) },
      { key: "leader", label: "Leader", sort: (row) => row.leader, cell: (row) => (isLeaderless(row) ? badge("none", "critical") : String(row.leader)) },
      { key: "replicas", label: "Replicas", cell: replicasCell },
      { key: "start", label: "First offset", number: true, sort: (row) => row.log_start_offset, cell: (row) => count(row.log_start_offset) },
      { key: "end", label: "Next offset", number: true, sort: (row) => row.log_end_offset, cell: (row) => count(row.log_end_offset) },
      { key: "records", label: "Records", number: true, sort: held, cell: (row) => count(held(row)), title: "at most, by offsets" },
      { key: "bytes", label: "Size of a replica", number: true, sort: (row) => row.bytes, cell: (row) => sizeCell(row, mean) },
      { key: "read", label: h("span.unseen", {}, "Messages"), cell: (row) => link(`/messages?topic=${part(page.parts[0])}&partition=${row.id}`, "read", h("span.unseen", {}, ` partition ${row.id}`)) },
    ],
  });
}

const held = (row) => (absent(row.log_end_offset) || absent(row.log_start_offset) ? null : row.log_end_offset - row.log_start_offset);

function sizeCell(row, mean) {
  const isLarge = mean > 1024 * 1024 && row.bytes > 2 * mean;
  return h("span", { class: isLarge ? "warning" : "", title: isLarge ? `${(row.bytes / mean).toFixed(1)} times the mean` : undefined }, bytes(row.bytes));
}

function replicasCell(row) {
  const moves = row.adding.length || row.removing.length;
  const lastLeader = isLeaderless(row) && row.last_known_elr.length ? h("span.small-note", {}, `last led by ${row.last_known_elr.join(", ")}`) : null;
  return [h("span.replicas", {}, row.replicas.map((broker) => replica(row, broker)), moves ? badge("moves", "info") : null), lastLeader, row.error ? h("span.small-note.critical", {}, shown(row.error)) : null];
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
      h("td.wide", {}, shown(each.directory), each.is_future ? [" ", badge("moves here", "info")] : null),
      h("td.number", {}, bytes(each.bytes)),
      h("td.number", {}, absent(each.lag) ? "\u2013" : each.lag ? counted(each.lag, "record") : "0"),
    ))),
  );
}

