// The brokers: where they are, what they hold, and their disks with hours left, hung, slow and rotten ones.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, bytes, count, counted, duration } from "../code/format.js";
import { badge, emptyBox, meter, pageHead, panel, panelWith } from "../code/parts.js";
import { table } from "../code/table.js";
import { brokerState, diskStates, fullness, isAlive } from "./broker_states.js";
import { quorumTable, reserveOf } from "./quorum.js";

export const title = () => "Brokers";

export function start(page) {
  return page.live({
    seconds: 5,
    load: async (signal) => {
      const [brokers, quorum] = await Promise.allSettled([get("/api/brokers", {}, { signal }), get("/api/quorum", {}, { signal })]);
      if (brokers.status === "rejected") throw brokers.reason;
      return { brokers: brokers.value, quorum: quorum.value ?? null };
    },
    render: ({ brokers, quorum }) => [
      brokerTable(page, brokers),
      diskPanel(page, brokers),
      quorum ? panelWith("Quorum of the controllers", reserveOf(quorum), quorumTable(quorum)) : null,
    ],
    frame: (body, data) => [pageHead("Brokers", { beside: data ? summary(data.brokers) : [] }), body],
  });
}

function summary(brokers) {
  const dead = brokers.filter((each) => !isAlive(each)).length;
  return [counted(brokers.length, "broker"), dead ? badge(`${dead} not alive`, "critical") : null];
}

function brokerTable(page, brokers) {
  return table({
    page,
    caption: "Brokers",
    rows: brokers,
    sorted: "id",
    keyOf: (row) => row.id,
    rowClass: (row) => [isAlive(row) ? "" : "bad", page.get("broker") === String(row.id) ? "chosen" : ""].join(" ").trim(),
    empty: emptyBox("No broker has registered", "A broker appears here as soon as it has registered with the controllers."),
    columns: [
      { key: "id", label: "Broker", head: true, sort: (row) => row.id, cell: (row) => String(row.id) },
      { key: "host", label: "Address", sort: (row) => row.host, cell: (row) => shown(`${row.host}:${row.port}`) },
      { key: "state", label: "State", sort: (row) => row.state, cell: brokerState },
      { key: "rack", label: "Rack", sort: (row) => row.rack, cell: (row) => (row.rack ? shown(row.rack) : "\u2013") },
      { key: "version", label: "Kafka", sort: (row) => row.version, cell: (row) => (row.version ? shown(row.version) : "\u2013"), title: "the release of Apache Kafka up to which the broker knows the formats of metadata" },
      { key: "roles", label: "Roles", cell: (row) => roles(row) },
      { key: "led", label: "Leads", number: true, sort: (row) => row.led, cell: (row) => count(row.led), title: "partitions that this broker leads" },
      { key: "replicas", label: "Replicas", number: true, sort: (row) => row.replicas, cell: replicasCell },
      { key: "bytes", label: "Data", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { key: "growth", label: "Grows", number: true, sort: (row) => row.bytes_per_second, cell: (row) => byteRate(row.bytes_per_second) },
      { key: "disks", label: "Disks", cell: (row) => diskStates(row.disks ?? []) },
    ],
  });
}

function roles(row) {
  return [row.roles.join(", "), row.is_active_controller ? [" ", badge("active controller", "info")] : null];
}

function replicasCell(row) {
  if (!row.offline_replicas) return count(row.replicas);
  return [count(row.replicas), h("span.small-note.critical", {}, `${count(row.offline_replicas)} offline`)];
}

function diskPanel(page, brokers) {
  const chosen = page.get("broker");
  const rows = brokers
    .filter((broker) => !chosen || String(broker.id) === chosen)
    .flatMap((broker) => (broker.disks ?? []).map((disk) => ({ broker: broker.id, ...disk })));
  const columns = [
    { key: "disk_broker", label: "Broker", sort: (row) => row.broker, cell: (row) => String(row.broker) },
    { key: "directory", label: "Directory", wide: true, sort: (row) => row.directory, cell: (row) => [shown(row.directory), row.error ? h("span.small-note.critical", {}, shown(row.error)) : null] },
    { key: "disk_state", label: "State", cell: (row) => diskStates([row]) },
    { key: "used", label: "Data", number: true, sort: (row) => row.used_bytes, cell: (row) => bytes(row.used_bytes) },
    { key: "full", label: "Full", number: true, sort: fullness, cell: fullCell },
    { key: "usable", label: "Free", number: true, sort: (row) => row.usable_bytes, cell: (row) => (absent(row.usable_bytes) ? "\u2013" : `${bytes(row.usable_bytes)} of ${bytes(row.total_bytes)}`) },
    { key: "left", label: "Time left", number: true, sort: (row) => row.hours_left, cell: hoursCell, title: "until the disk is full, at the pace of the last hour" },
    { key: "sync", label: "Sync", number: true, sort: (row) => row.sync_ms, cell: syncCell, title: "the time that a sync takes" },
    { key: "rot", label: "Rot", number: true, sort: (row) => row.rot, cell: rotCell, title: "logs in which the scrub has found damaged bytes" },
  ];
  return panel("Disks", table({ page, caption: "Disks", rows, keyOf: (row) => `${row.broker}:${row.directory}`, sorted: "disk_broker", columns, empty: emptyBox("No disk is known", "Brokers that are down do not say what they hold.") }));
}

function fullCell(row) {
  const full = fullness(row);
  if (full === null) return "\u2013";
  const tone = full > 0.95 ? "critical" : full > 0.85 ? "warning" : "";
  return h("span.full", {}, meter(full, tone), h("span", {}, `${Math.round(full * 100)} %`));
}

function syncCell(row) {
  if (absent(row.sync_ms)) return "\u2013";
  const usual = absent(row.usual_sync_ms) ? undefined : `usually ${duration(row.usual_sync_ms)}`;
  return h("span", { class: row.is_slow ? "warning" : "", title: usual }, duration(row.sync_ms));
}

function rotCell(row) {
  if (absent(row.rot)) return "\u2013";
  const read = absent(row.scrub_percent) ? undefined : `the scrub has read ${row.scrub_percent} % in this round`;
  return h("span", { class: row.rot ? "critical" : "", title: read }, row.rot ? counted(row.rot, "log") : "none");
}

function hoursCell(row) {
  if (absent(row.hours_left)) return "\u2013";
  const tone = row.hours_left < 24 ? "critical" : row.hours_left < 24 * 7 ? "warning" : "";
  return h("span", { class: tone }, duration(row.hours_left * 3_600_000));
}
