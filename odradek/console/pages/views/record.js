// One record, whole: key, value, headers, and what the broker says about it.

import { address, get } from "../code/api.js";
import { h, plain, say, shown } from "../code/dom.js";
import { absent, bytes, clock, count, sentence } from "../code/format.js";
import { badge, button, facts, notice } from "../code/parts.js";
import { laidOut } from "./json_text.js";

// The most characters of one value that are put on the page. A browser needs seconds for more.
const SHOWN_MOST = 200_000;

export const recordKey = (record) => `${record.partition}-${record.offset}`;

/** Return the details of a record, for the row below it. */
export function recordDetail(page, record) {
  const whole = record.whole ?? record;
  const topic = page.get("topic");
  if (record.error) return notice("warning", [shown(sentence(record.error)), ` Reading goes on at offset ${count(record.next_offset)}.`]);
  const isCut = !record.whole && (record.key.is_cut || record.value.is_cut);
  return h(
    "div.record",
    {},
    h(
      "div.record-head",
      {},
      h("strong", {}, `Partition ${record.partition}, offset ${count(record.offset)}`),
      h(
        "span.beside",
        {},
        isCut ? button("Load all of it", () => loadWhole(page, record), { class: "quiet" }) : null,
        download(topic, record, "key"),
        download(topic, record, "value"),
      ),
    ),
    record.failure ? notice("warning", shown(record.failure)) : null,
    h("div.parts", {}, payload("Value", whole.value), payload("Key", whole.key), headersBox(whole)),
    facts(
      ["Time", clock(record.timestamp_ms)],
      ["Kind of time", kindOfTime(record.timestamp_type)],
      ["Size", bytes(record.size_bytes)],
      ["Producer", absent(record.transaction?.producer_id) ? null : String(record.transaction.producer_id)],
      ["Transaction", record.transaction ? TRANSACTIONS[record.transaction.state] ?? record.transaction.state : null],
    ),
  );
}

const TRANSACTIONS = {
  aborted: "aborted: readers of committed records never see it",
  open: "open: readers of committed records wait for its end",
  committed: "committed",
  unknown: "ended; its marker is too far behind to be read",
};

function kindOfTime(type) {
  return { create: "set by the producer", append: "set by the broker" }[type] ?? null;
}

async function loadWhole(page, record) {
  try {
    record.whole = await get("/api/message", { topic: page.get("topic"), partition: record.partition, offset: record.offset, key_format: page.get("key_format"), value_format: page.get("value_format") }, page);
    delete record.failure;
  } catch (error) {
    if (error.status === undefined) throw error;
    record.failure = error.message;
  }
  page.draw();
}

function download(topic, record, part) {
  if (record[part].text === null || record.is_control) return null;
  const href = address("/api/download", { topic, partition: record.partition, offset: record.offset, part });
  return h("a.button.quiet", { href, download: "" }, `Download the ${part}`);
}

function payload(name, part) {
  const isNull = part.text === null;
  const text = isNull ? "" : part.text;
  const isLong = text.length > SHOWN_MOST;
  const pretty = isNull ? null : laidOut(text);
  return h(
    "div.payload",
    {},
    h(
      "div.payload-head",
      {},
      h("strong", {}, name),
      isNull ? null : h("span", {}, formatOf(part)),
      isNull ? null : h("span", {}, bytes(part.size_bytes)),
      part.is_cut || isLong ? badge("cut", "warning", isLong ? "Only the beginning is shown. Download the whole." : "Only the beginning is shown.") : null,
      h("span.beside", {}, isNull ? null : button("Copy", () => copy(text), { class: "quiet" })),
    ),
    part.error ? h("p.payload-head", {}, badge("unreadable", "warning"), shown(part.error)) : null,
    h("pre", { tabindex: "0", role: "group", "aria-label": name }, isNull ? h("span.null", {}, name === "Value" ? "null: it deletes its key where the topic is compacted" : "null") : text === "" ? h("span.null", {}, "empty") : pretty ?? shown(isLong ? text.slice(0, SHOWN_MOST) : text, { lines: true })),
  );
}

function formatOf(part) {
  const names = { text: "text", json: "JSON", hex: "hex", avro: "Avro", protobuf: "Protobuf", "json-schema": "JSON Schema", internal: "internal record" };
  const name = names[part.format] ?? part.format;
  return absent(part.schema_id) ? name : `${name}, schema ${part.schema_id}`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch (error) {
    say(`The browser does not let the page copy: ${error.message}`);
  }
}

function headersBox({ headers, header_count: all }) {
  if (!headers.length) return null;
  const number = all > headers.length ? `the first ${headers.length} of ${count(all)}` : count(all);
  return h(
    "div.payload",
    {},
    h("div.payload-head", {}, h("strong", {}, "Headers"), number),
    h(
      "div.table-scroll",
      { tabindex: "0", role: "region", "aria-label": "Headers" },
      h("table", {}, h("tbody", {}, headers.map((each) => h("tr", {}, h("th", { scope: "row", class: "wide" }, shown(each.name)), h("td.wide.mono", {}, each.value.text === null ? h("span.null", {}, "null") : shown(each.value.text)), h("td", {}, h("span.muted", {}, each.value.text === null ? "" : plain(formatOf(each.value)))))))),
    ),
  );
}
