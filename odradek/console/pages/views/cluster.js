// The cluster: what is wrong now and what to do, its figures, brokers and disks, the quorum, and what happened lately.

import { get } from "../code/api.js";
import { chart, series } from "../code/chart.js";
import { h, shown, told } from "../code/dom.js";
import { absent, ago, byteRate, bytes, count, counted, duration, rate, sentence } from "../code/format.js";
import { emptyBox, link, pageHead, panel, panelWith, sign, tile, tiles } from "../code/parts.js";
import { tellState } from "../code/shell.js";
import { brokerState, diskStates } from "./broker_states.js";
import { RUNBOOKS } from "./runbooks.js";
import { quorumTable, reserveOf } from "./quorum.js";

export const title = () => "Cluster";

const WORDS = { ok: "All is well", warning: "Something needs a look", critical: "Something is wrong" };

export function start(page) {
  const beside = { brokers: null, quorum: null };
  keepBeside(page, beside);
  sampleSoon(page);
  return page.live({
    events: { path: "/api/events", params: { view: "overview" }, name: "overview" },
    render: (data) => {
      note(data);
      return body(data, beside);
    },
    frame: (inner) => [pageHead("Cluster"), inner],
  });
}

// A rate takes two samples. The stream may take its time to the second one, so this page asks for it once.
async function sampleSoon(page) {
  await new Promise((resolve) => setTimeout(resolve, 2500));
  if (page.signal.aborted || series("throughput").times.length) return;
  try {
    page.take(await get("/api/overview", {}, page));
  } catch (error) {
    // The stream says what is wrong.
    if (error.status === undefined && error.name !== "AbortError") throw error;
  }
}

// Brokers and quorum change seldom and cost more to ask for: every ten seconds.
async function keepBeside(page, beside) {
  while (!page.signal.aborted) {
    if (!document.hidden) {
      await Promise.all(["brokers", "quorum"].map((name) => askBeside(page, beside, name)));
      page.draw();
    }
    await new Promise((resolve) => setTimeout(resolve, 10_000));
  }
}

async function askBeside(page, beside, name) {
  try {
    beside[name] = await get(`/api/${name}`, {}, page);
  } catch (error) {
    if (error.status === undefined && error.name !== "AbortError") throw error;
    // Without an answer the panel keeps what it had; without a right it says so.
    if (error.status === 403 || error.status === 501) beside[name] = error;
  }
}

let noted = null;

function note(data) {
  if (data === noted) return;
  noted = data;
  tellState(data);
  if (absent(data.records_per_second)) return;
  series("throughput").add(Date.now(), new Map([["records", data.records_per_second], ["bytes", data.bytes_per_second]]));
}

function body(data, beside) {
  return [
    judgement(data),
    data.troubles?.length ? h("ul.troubles", { "aria-label": "Troubles" }, data.troubles.map(trouble)) : null,
    figures(data),
    h("div.columns", {}, throughput(data), quorumPanel(data, beside.quorum)),
    brokersPanel(beside.brokers),
    historyPanel(data),
  ];
}

function judgement(data) {
  const troubles = data.troubles?.length ?? 0;
  const release = data.version ? [" It uses the metadata of Apache Kafka ", shown(data.version), "."] : null;
  const word = WORDS[data.judgement] ?? data.judgement;
  const alive = `${counted(data.brokers_alive, "broker")} of ${count(data.brokers)} ${data.brokers_alive === 1 ? "serves" : "serve"} ${counted(data.topics, "topic")} with ${counted(data.partitions, "partition")}.`;
  return h(
    "section.judgement",
    { "aria-label": "State of the cluster" },
    sign(data.judgement),
    h("div", {}, h("p.judgement-word", { class: data.judgement }, troubles > 1 ? `${word}: ${troubles} troubles` : word), h("p.serving", {}, alive, release)),
  );
}

function trouble(each) {
  // What nobody saw has many reasons. Where the remedy is known, no section is.
  const section = each.kind === "not-seen" && each.what_to_do ? null : RUNBOOKS[each.kind];
  return h(
    "li.trouble",
    { class: each.severity },
    sign(each.severity),
    h(
      "div",
      {},
      h("p.what", {}, told(sentence(each.sentence))),
      h(
        "p.todo",
        {},
        each.what_to_do ? [told(sentence(each.what_to_do)), " "] : null,
        section ? [`docs/operations.md explains it: \u201c${section}\u201d. `] : null,
        // Only a place in this console: nobody else's text may lead out of it.
        /^\/(?!\/)/.test(each.link ?? "") ? link(each.link, "Show it") : null,
      ),
    ),
  );
}

function figures(data) {
  const bad = (value, tone) => (value > 0 ? tone : "");
  return tiles(
    tile("brokers up", `${count(data.brokers_alive)} / ${count(data.brokers)}`, { tone: data.brokers_alive < data.brokers ? "critical" : "", href: "/brokers" }),
    tile("topics", count(data.topics), { href: "/topics?internal=1" }),
    tile("partitions", count(data.partitions)),
    tile("no leader", count(data.offline), { tone: bad(data.offline, "critical"), href: data.offline ? "/topics?state=offline" : null }),
    tile("under-replicated", count(data.under_replicated), { tone: bad(data.under_replicated, "warning"), href: data.under_replicated ? "/topics?state=under_replicated" : null }),
    tile("under min ISR", count(data.under_min_isr), { tone: bad(data.under_min_isr, "critical"), href: data.under_min_isr ? "/topics?state=under_min_isr" : null }),
    tile("moving", count(data.moving), { href: "/moves" }),
    tile("records in", rate(data.records_per_second)),
    tile("growth of logs", byteRate(data.bytes_per_second)),
  );
}

function throughput(data) {
  const points = series("throughput");
  const waiting = points.times.length < 2;
  return panelWith(
    "Throughput",
    "since this page was opened",
    waiting
      ? h("div.chart-place", {}, emptyBox("Measuring", "A rate is the difference of two samples."))
      : h("div.chart-place", {}, chart({ key: "throughput", title: "Records in per second", data: points, lines: [["records", "records/s", "--line-1"]], written: rate, height: 150 })),
  );
}

function quorumPanel(data, quorum) {
  const head = absent(data.active_controller) ? "no active controller" : `active controller: node ${data.active_controller}`;
  if (!quorum) return panelWith("Quorum", head, emptyBox("Asking the controllers\u2026"));
  if (quorum instanceof Error) return panelWith("Quorum", head, emptyBox("You may not see this", shown(quorum.message)));
  return panelWith("Quorum", `${head}, ${reserveOf(quorum)}`, quorumTable(quorum));
}

function brokersPanel(brokers) {
  if (!brokers) return panel("Brokers and disks", emptyBox("Asking the brokers\u2026"));
  if (brokers instanceof Error) return panel("Brokers and disks", emptyBox("You may not see this", shown(brokers.message)));
  const head = [["Broker"], ["Address"], ["State"], ["Leads", 1], ["Replicas", 1], ["Data", 1], ["Fullest disk", 1], ["Time left", 1], ["Disks"]];
  return panelWith(
    "Brokers and disks",
    link("/brokers", "All about brokers"),
    h(
      "div.table-scroll",
      { tabindex: "0", role: "region", "aria-label": "Brokers and disks" },
      h(
        "table",
        {},
        h("caption.unseen", {}, "Brokers and disks"),
        h("thead", {}, h("tr", {}, head.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, name)))),
        h("tbody", {}, brokers.map(brokerLine)),
      ),
    ),
  );
}

function brokerLine(each) {
  const disks = each.disks ?? [];
  const fullest = disks.filter((disk) => disk.total_bytes).map((disk) => 1 - disk.usable_bytes / disk.total_bytes).sort((a, b) => b - a)[0];
  const hours = disks.map((disk) => disk.hours_left).filter((left) => !absent(left)).sort((a, b) => a - b)[0];
  return h(
    "tr",
    { "data-key": `broker-${each.id}` },
    h("td", {}, link(`/brokers?broker=${each.id}`, String(each.id))),
    h("td", {}, shown(`${each.host}:${each.port}`)),
    h("td", {}, brokerState(each)),
    h("td.number", {}, count(each.led)),
    h("td.number", {}, count(each.replicas)),
    h("td.number", {}, bytes(each.bytes)),
    h("td.number", { class: fullest > 0.95 ? "critical" : fullest > 0.85 ? "warning" : "" }, absent(fullest) ? "\u2013" : `${Math.round(fullest * 100)} % full`),
    h("td.number", {}, absent(hours) ? "\u2013" : duration(hours * 3_600_000)),
    h("td", {}, diskStates(disks)),
  );
}

function historyPanel({ events, events_unknown: reason }) {
  const head = link("/history", "All history");
  if (absent(events)) return panelWith("Lately", head, emptyBox("The newest changes are not known", shown(sentence(reason ?? ""))));
  if (!events.length) return panelWith("Lately", head, emptyBox("Nothing has changed lately"));
  return panelWith("Lately", head, h("ul.events", {}, events.map(event)));
}

function event(each) {
  return h("li", {}, ago(each.time_ms), h("span", {}, shown(sentence(each.sentence)), each.who ? h("span.who", {}, " \u00b7 ", shown(each.who)) : null));
}
