// Partitions that move between brokers and disks, with bytes, throttle and time left; brokers and disks that empty.

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, bytes, count, counted, duration } from "../code/format.js";
import { badge, emptyBox, meter, pageHead, panel, tile, tiles, topicLink } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Moves";

export function start(page) {
  return page.live({
    seconds: 3,
    load: (signal) => get("/api/moves", { page: page.get("page") }, { signal }),
    render: (data) => body(page, data),
    frame: (inner, data) => [pageHead("Moves, drains and retirements", { beside: data ? counted(data.total, "moving partition") : [] }), inner],
  });
}

function body(page, data) {
  return [
    data.total ? figures(data) : null,
    panel("Between brokers", moves(page, data)),
    data.disk_moves_total ? panel("Between disks of a broker", diskMoves(page, data)) : null,
    panel("Brokers that partitions leave", drains(page, data.drains)),
    panel("Disks that are retired", retirements(page, data.retirements)),
  ];
}

function figures({ total, moves: rows }) {
  const sum = (name) => rows.reduce((all, each) => all + (each[name] ?? 0), 0);
  const left = rows.map((each) => each.eta_ms).filter((ms) => !absent(ms));
  return tiles(
    tile("moving", count(total)),
    tile("copied", bytes(sum("bytes_done"))),
    tile("in all", bytes(sum("bytes_total"))),
    tile("pace", byteRate(sum("bytes_per_second"))),
    tile("time left", left.length ? duration(Math.max(...left)) : "\u2013"),
  );
}

const brokersOf = (all) => (all.length ? all.join(", ") : "\u2013");
const share = (row) => (row.bytes_total ? Math.min(1, row.bytes_done / row.bytes_total) : null);

const TOPIC = { key: "topic", label: "Topic", head: true, wide: true, sort: (row) => `${row.topic} ${row.partition}`, cell: (row) => topicLink(row.topic) };
const PARTITION = { key: "partition", label: "Partition", number: true, sort: (row) => row.partition, cell: (row) => String(row.partition) };
const PROGRESS = [
  { key: "done", label: "Copied", sort: share, cell: doneCell },
  { key: "bytes", label: "Bytes", number: true, sort: (row) => row.bytes_total, cell: (row) => (absent(row.bytes_total) ? bytes(row.bytes_done) : `${bytes(row.bytes_done)} of ${bytes(row.bytes_total)}`) },
  { key: "pace", label: "Pace", number: true, sort: (row) => row.bytes_per_second, cell: (row) => byteRate(row.bytes_per_second) },
  { key: "throttle", label: "Throttle", number: true, cell: (row) => (absent(row.throttle_bytes_per_second) ? "none" : byteRate(row.throttle_bytes_per_second)) },
  { key: "eta", label: "Time left", number: true, sort: (row) => row.eta_ms, cell: (row) => duration(row.eta_ms) },
];

function moves(page, data) {
  return table({
    page,
    caption: "Moves between brokers",
    rows: data.moves,
    paged: data,
    size: 200,
    sorted: "topic",
    keyOf: (row) => `${row.topic}/${row.partition}`,
    empty: emptyBox("Nothing moves", "Partitions move when somebody asks for it: ", h("code", {}, "odradek partition move"), ", ", h("code", {}, "balance"), " or a drain."),
    columns: [TOPIC, PARTITION, { key: "from", label: "From", cell: (row) => brokersOf(row.from) }, { key: "to", label: "To", cell: (row) => brokersOf(row.to) }, ...PROGRESS],
  });
}

function doneCell(row) {
  if (share(row) === null) return "\u2013";
  return h("span.full", {}, meter(share(row)), h("span", {}, `${Math.floor(share(row) * 100)} %`));
}

function diskMoves(page, data) {
  return table({
    page,
    caption: "Moves between disks",
    rows: data.disk_moves,
    keyOf: (row) => `${row.topic}/${row.partition}/${row.broker}`,
    columns: [TOPIC, PARTITION, { key: "broker", label: "Broker", number: true, cell: (row) => String(row.broker) }, { key: "from", label: "From", wide: true, cell: (row) => (row.from ? shown(row.from) : "\u2013") }, { key: "to", label: "To", wide: true, cell: (row) => shown(row.to) }, ...PROGRESS],
  });
}

function drains(page, rows) {
  return table({
    page,
    caption: "Brokers that partitions leave",
    rows,
    keyOf: (row) => row.broker,
    empty: emptyBox("No broker is being emptied", h("code", {}, "odradek broker drain"), " moves all replicas off a broker."),
    columns: [
      { key: "broker", label: "Broker", head: true, cell: (row) => `broker ${row.broker}` },
      { key: "moving", label: "Leaving", number: true, cell: (row) => counted(row.moving, "partition") },
      { key: "staying", label: "Staying", number: true, cell: (row) => (row.staying ? counted(row.staying, "partition") : "none"), title: "partitions with a replica there that do not leave" },
      { key: "left", label: "Still to copy", number: true, cell: (row) => bytes(row.bytes_left) },
    ],
  });
}

function retirements(page, rows) {
  return table({
    page,
    caption: "Disks that are retired",
    rows,
    keyOf: (row) => `${row.broker}:${row.directory}`,
    empty: emptyBox("No disk is being retired", h("code", {}, "odradek disk retire"), " empties a disk, so that it can be pulled."),
    columns: [
      { key: "broker", label: "Broker", head: true, cell: (row) => `broker ${row.broker}` },
      { key: "directory", label: "Directory", wide: true, cell: (row) => shown(row.directory) },
      { key: "replicas", label: "Replicas left", number: true, cell: (row) => count(row.replicas_left) },
      { key: "bytes", label: "Bytes left", number: true, cell: (row) => bytes(row.bytes_left) },
      { key: "released", label: "State", cell: (row) => (row.is_released ? badge("may be pulled", "ok") : badge("emptying", "info")) },
    ],
  });
}
