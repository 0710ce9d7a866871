// The brokers: where they are, what they hold, and their disks with hours left, hung, slow and rotten ones.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, bytes, count, counted, duration } from "../code/format.js";
import { badge, emptyBox, meter, pageHead, panel } from "../code/parts.js";
import { table } from "../code/table.js";
import { brokerState, diskStates, fullness, isAlive, rotOf } from "./broker_states.js";
import { quorumTable } from "./quorum.js";

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
      quorum ? panel("Quorum of the controllers", quorumTable(quorum)) : null,
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
      { key: "roles", label: "Roles", cell: (row) => roles(row) },
      { key: "version", label: "Version", cell: (row) => (row.version ? shown(row.version) : "\u2013") },
      { key: "led", label: "Leads", number: true, sort: (row) => row.led, cell: (row) => count(row.led), title: "partitions that this broker leads" },
      { key: "replicas", label: "Replicas", number: true, sort: (row) => row.replicas, cell: (row) => count(row.replicas) },
      { key: "bytes", label: "Data", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
      { key: "epoch", label: "Epoch", number: true, cell: (row) => (absent(row.epoch) ? "\u2013" : count(row.epoch)) },
      { key: "disks", label: "Disks", cell: (row) => diskStates(row.disks ?? []) },
    ],
  });
}

function roles(row) {
  const all = Array.isArray(row.roles) ? row.roles : row.roles ? [row.roles] : [];
  return all.length ? all.join(", ") : "\u2013";
}

function diskPanel(page, brokers) {
  const chosen = page.get("broker");
  const rows = brokers
    .filter((broker) => !chosen || String(broker.id) === chosen)
    .flatMap((broker) => (broker.disks ?? []).map((disk) => ({ broker: broker.id, ...disk })));
  const columns = [
    { key: "disk_broker", label: "Broker", sort: (row) => row.broker, cell: (row) => String(row.broker) },
    { key: "directory", label: "Directory", wide: true, sort: (row) => row.directory, cell: (row) => shown(row.directory) },
    { key: "disk_state", label: "State", cell: (row) => diskStates([row]) },
    { key: "used", label: "Data", number: true, sort: (row) => row.used_bytes, cell: (row) => bytes(row.used_bytes) },
    { key: "full", label: "Full", number: true, sort: fullness, cell: fullCell },
    { key: "usable", label: "Free", number: true, sort: (row) => row.usable_bytes, cell: (row) => (absent(row.usable_bytes) ? "\u2013" : `${bytes(row.usable_bytes)} of ${bytes(row.total_bytes)}`) },
    { key: "left", label: "Time left", number: true, sort: (row) => row.hours_left, cell: hoursCell, title: "until the disk is full, at the pace of the last hour" },
    { key: "sync", label: "Sync", number: true, sort: (row) => row.sync_ms, cell: (row) => (absent(row.sync_ms) ? "\u2013" : duration(row.sync_ms)), title: "how long the last sync of the disk took" },
    { key: "rot", label: "Rot", number: true, cell: (row) => (absent(row.rot) ? "\u2013" : rotOf(row) ? h("span.critical", {}, counted(rotOf(row), "partition")) : "none") },
  ];
  return panel("Disks", table({ page, caption: "Disks", rows, keyOf: (row) => `${row.broker}:${row.directory}`, sorted: "disk_broker", columns, empty: emptyBox("No disk is known", "Brokers that are down do not say what they hold.") }));
}

function fullCell(row) {
  const full = fullness(row);
  if (full === null) return "\u2013";
  const tone = full > 0.95 ? "critical" : full > 0.85 ? "warning" : "";
  return h("span.full", {}, meter(full, tone), ` ${Math.round(full * 100)} %`);
}

function hoursCell(row) {
  if (absent(row.hours_left)) return "\u2013";
  const tone = row.hours_left < 24 ? "critical" : row.hours_left < 24 * 7 ? "warning" : "";
  return h("span", { class: tone }, duration(row.hours_left * 3_600_000));
}
