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
    load: (signal) => get("/api/moves", {}, { signal }),
    render: (data) => body(page, data),
    frame: (inner, data) => [pageHead("Moves, drains and retirements", { beside: data ? counted(data.moves.length, "partition") : [] }), inner],
  });
}

function body(page, data) {
  const done = data.moves.reduce((sum, each) => sum + (each.bytes_done ?? 0), 0);
  const total = data.moves.reduce((sum, each) => sum + (each.bytes_total ?? 0), 0);
  const left = data.moves.map((each) => each.eta_ms).filter((ms) => !absent(ms));
  return [
    data.moves.length
      ? tiles(tile("moving", count(data.moves.length)), tile("copied", bytes(done)), tile("in all", bytes(total)), tile("left", bytes(Math.max(0, total - done))), tile("time left", left.length ? duration(Math.max(...left)) : "\u2013"))
      : null,
    panel("Moving partitions", moves(page, data.moves)),
    emptying("Brokers that are drained", data.drains ?? [], "No broker is being drained", "odradek broker drain 4"),
    emptying("Disks that are retired", data.retirements ?? [], "No disk is being retired", "odradek disk retire --broker 1 --path /data/2"),
  ];
}

const places = (all) => (Array.isArray(all) ? (all.length ? all.map((each) => String(each)).join(", ") : "\u2013") : absent(all) ? "\u2013" : String(all));
const share = (row) => (row.bytes_total ? row.bytes_done / row.bytes_total : null);

function moves(page, rows) {
  return table({
    page,
    caption: "Moving partitions",
    rows,
    sorted: "topic",
    keyOf: (row) => `${row.topic}/${row.partition}`,
    empty: emptyBox("Nothing moves", "Partitions move when somebody asks for it: ", h("code", {}, "odradek partition move"), ", ", h("code", {}, "balance"), " or a drain."),
    columns: [
      { key: "topic", label: "Topic", head: true, wide: true, sort: (row) => `${row.topic} ${row.partition}`, cell: (row) => topicLink(row.topic) },
      { key: "partition", label: "Partition", number: true, sort: (row) => row.partition, cell: (row) => String(row.partition) },
      { key: "from", label: "From", cell: (row) => shown(places(row.from)) },
      { key: "to", label: "To", cell: (row) => shown(places(row.to)) },
      { key: "done", label: "Copied", sort: share, cell: doneCell },
      { key: "bytes", label: "Bytes", number: true, sort: (row) => row.bytes_total, cell: (row) => (absent(row.bytes_total) ? bytes(row.bytes_done) : `${bytes(row.bytes_done)} of ${bytes(row.bytes_total)}`) },
      { key: "throttle", label: "Throttle", number: true, cell: (row) => (absent(row.throttle) ? "none" : byteRate(row.throttle)) },
      { key: "eta", label: "Time left", number: true, sort: (row) => row.eta_ms, cell: (row) => duration(row.eta_ms) },
    ],
  });
}

function doneCell(row) {
  if (share(row) === null) return "\u2013";
  return h("span.full", {}, meter(share(row)), ` ${Math.floor(share(row) * 100)} %`);
}

function emptying(title_, rows, none, command) {
  if (!rows.length) return panel(title_, emptyBox(none, h("code", {}, command)));
  return panel(
    title_,
    h(
      "div.table-scroll",
      { tabindex: "0", role: "region", "aria-label": title_ },
      h(
        "table",
        {},
        h("caption.unseen", {}, title_),
        h("thead", {}, h("tr", {}, ["What", "State", "Partitions left", "Bytes left", "Time left"].map((name, at) => h("th", { scope: "col", class: at > 1 ? "number" : "" }, name)))),
        h("tbody", {}, rows.map(emptyingLine)),
      ),
    ),
  );
}

function emptyingLine(row) {
  const name = [absent(row.broker) ? null : `broker ${row.broker}`, row.directory ?? row.path].filter(Boolean).join(", ");
  return h(
    "tr",
    {},
    h("td.wide", {}, shown(name)),
    h("td", {}, row.state ? badge(String(row.state).replaceAll("_", " "), "info") : "\u2013"),
    h("td.number", {}, count(row.partitions_left ?? row.partitions)),
    h("td.number", {}, bytes(row.bytes_left ?? row.bytes)),
    h("td.number", {}, duration(row.eta_ms)),
  );
}
