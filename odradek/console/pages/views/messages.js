// Messages: where to read, a filter, what was scanned, the records that were found, and those that arrive.
//
// Nothing is read until somebody asks, since a scan costs the brokers work. The question is in the address; a stop, a
// new question or another page ends the request, and with it the work.

import { address, get, stream, troubleOf } from "../code/api.js";
import { h, icon, redraw, say, shown } from "../code/dom.js";
import { absent, bytes, clock, count, counted, sentence, timeOfDay } from "../code/format.js";
import { badge, button, choice, emptyBox, errorBox, field, link, meter, notice, pageHead, topicLink } from "../code/parts.js";
import { recordDetail, recordKey } from "./record.js";

export const title = (page) => (page.get("topic") ? `Messages of ${page.get("topic")}` : "Messages");

const KEPT = 2000;
const DRAWN_MS = 120;
const FORMATS = [["auto", "Automatic"], ["text", "Text"], ["json", "JSON"], ["hex", "Hex"], ["avro", "Avro"], ["protobuf", "Protobuf"], ["json-schema", "JSON Schema"], ["internal", "Internal topics"]];
const BEGINS = [["newest", "Newest"], ["earliest", "From the beginning"], ["offset", "From an offset"], ["time", "From a time"]];

export async function start(page) {
  const view = new MessagesView(page);
  page.draw = () => view.draw();
  page.wake = () => undefined;
  page.changed = () => view.changed();
  page.signal.addEventListener("abort", () => view.stop());
  view.draw();
  if (page.get("topic")) view.read();
  await view.suggestTopics();
}

class MessagesView {
  constructor(page) {
    this.page = page;
    this.records = [];
    this.open = new Set();
    this.scan = null;
    this.topics = [];
    this.asked = location.search;
    this.drawing = 0;
  }

  changed() {
    if (location.search === this.asked) return this.draw();
    this.asked = location.search;
    this.stop();
    if (this.page.get("topic")) this.read();
    else this.draw();
  }

  async suggestTopics(search = "") {
    try {
      const found = await get("/api/topics", { search }, this.page);
      this.topics = found.rows.map((row) => row.name);
      this.draw();
    } catch (error) {
      // Suggestions only: a name can be typed without them, and reading will say what is wrong.
      if (error.status === undefined && error.name !== "AbortError") throw error;
    }
  }

  stop() {
    this.scan?.ending.abort();
  }

  /** Read what the address asks for. */
  async read() {
    this.stop();
    const { page } = this;
    const isTail = page.get("tail") === "1";
    const scan = { ending: new AbortController(), isTail, isRunning: true, progress: null, end: null, error: null, begun: Date.now(), arrived: 0 };
    this.scan = scan;
    this.records = [];
    this.open.clear();
    this.draw();
    try {
      for await (const [name, data] of stream("/api/messages", this.question(), { signal: scan.ending.signal })) {
        if (this.scan !== scan) return;
        if (name === "record") this.arrive(scan, data);
        else if (name === "progress") scan.progress = data;
        else if (name === "end") scan.end = data;
        else if (name === "trouble") scan.error = troubleOf(data);
        this.drawSoon();
      }
    } catch (error) {
      if (error.status === undefined && error.name !== "AbortError") throw error;
      if (error.name !== "AbortError") scan.error = error;
      else scan.end ??= { reason: "stopped" };
    } finally {
      scan.isRunning = false;
      if (this.scan === scan && !page.signal.aborted) {
        this.draw();
        say(scan.error ? scan.error.message : `${counted(this.records.length, "record")} found.`);
      }
    }
  }

  question() {
    const { page } = this;
    const isTail = page.get("tail") === "1";
    return {
      topic: page.get("topic"),
      partition: page.get("partition"),
      from: isTail ? "latest" : fromOf(page),
      before: isTail ? "" : page.get("before"),
      filter: page.get("filter"),
      key: page.get("key"),
      header: page.get("header"),
      key_format: page.get("key_format"),
      value_format: page.get("value_format"),
      limit: isTail ? "" : page.get("limit", "100"),
      markers: page.get("markers") === "1" ? "1" : "0",
      tail: isTail ? "1" : "",
    };
  }

  arrive(scan, record) {
    scan.arrived += 1;
    if (scan.isTail) this.records.unshift(record);
    else this.records.push(record);
    if (this.records.length > KEPT) this.records.length = KEPT;
  }

  drawSoon() {
    if (this.drawing) return;
    this.drawing = setTimeout(() => {
      this.drawing = 0;
      if (!this.page.signal.aborted) this.draw();
    }, DRAWN_MS);
  }

  draw() {
    const topic = this.page.get("topic");
    const head = pageHead("Messages", { above: topic ? [link("/topics", "Topics"), h("span", { "aria-hidden": "true" }, "/"), topicLink(topic)] : null });
    redraw(this.page.root, head, this.form(), this.scanLine(), this.body());
  }

  form() {
    const { page } = this;
    const begin = page.get("begin", "newest");
    const partitions = h("input", { name: "partition", inputmode: "numeric", pattern: "[0-9]*", value: page.get("partition"), placeholder: "all", autocomplete: "off" });
    return h(
      "form.reader",
      { "data-key": "reader", onsubmit: (event) => this.submit(event) },
      h(
        "div.bar",
        {},
        h("div.field.topic", {}, field("Topic", h("input.search", { name: "topic", list: "topics", required: true, value: page.get("topic"), autocomplete: "off", spellcheck: "false", oninput: (event) => this.typed(event.target.value) }))),
        h("datalist", { id: "topics" }, this.topics.slice(0, 100).map((name) => h("option", { value: name }))),
        h("div.field.short", {}, field("Partition", partitions)),
        h("div.field.short", {}, field("Read", choice("begin", begin, BEGINS, (value) => page.set({ begin: value, at: "" }, { replace: true })))),
        begin === "offset" ? h("div.field.short", {}, field("Offset", h("input", { name: "at", inputmode: "numeric", pattern: "[0-9]+", required: true, value: page.get("at") }))) : null,
        begin === "time" ? h("div.field", {}, field("Time", h("input", { name: "at", type: "datetime-local", step: "1", required: true, value: localTime(page.get("at")) }))) : null,
        h("div.field.short", {}, field("At most", choice("limit", page.get("limit", "100"), [["20", "20 records"], ["100", "100 records"], ["500", "500 records"], ["1000", "1,000 records"]]))),
        h("div.field.short", {}, field("Show keys as", choice("key_format", page.get("key_format", "auto"), FORMATS))),
        h("div.field.short", {}, field("Show values as", choice("value_format", page.get("value_format", "auto"), FORMATS))),
      ),
      h("div.bar", {}, this.filters(), this.actions()),
    );
  }

  filters() {
    const { page } = this;
    const free = { autocomplete: "off", spellcheck: "false" };
    return [
      h("div.field.wide", {}, field("Only values that match", h("input", { name: "filter", value: page.get("filter"), placeholder: "a word, or a regular expression (RE2)", ...free }))),
      h("div.field.little", {}, field("Only the key", h("input", { name: "key", value: page.get("key"), placeholder: "exactly", ...free }))),
      h("div.field.little", {}, field("Only the header", h("input", { name: "header", value: page.get("header"), placeholder: "name=value", pattern: "[^=]+=.*", ...free }))),
      h("label.check", { title: "The records by which brokers mark that a transaction was committed or aborted." }, h("input", { type: "checkbox", name: "markers", value: "1", checked: page.get("markers") === "1" }), "Markers"),
    ];
  }

  actions() {
    const running = this.scan?.isRunning;
    return h(
      "div.actions",
      {},
      running
        ? button("Stop", () => this.stop(), { "data-key": "stop" })
        : h("button", { type: "submit", name: "tail", value: "1", "data-key": "follow" }, "Follow new ones"),
      h("button.main", { type: "submit", name: "tail", value: "", "data-key": "read" }, "Read"),
    );
  }

  typed(text) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.page.signal.aborted || this.suggestTopics(text), 200);
  }

  submit(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target));
    if (values.begin === "time") values.at = String(new Date(values.at).getTime());
    for (const [name, usual] of [["limit", "100"], ["begin", "newest"], ["key_format", "auto"], ["value_format", "auto"]])
      if (values[name] === usual) values[name] = "";
    values.before = "";
    values.tail = event.submitter?.value ?? "";
    values.markers ??= "";
    values.at ??= "";
    this.asked = null;
    this.page.set(values);
  }

  scanLine() {
    const { scan } = this;
    if (!scan) return null;
    const { progress, end } = scan;
    const failed = (end ?? progress)?.failed ?? [];
    const size = progress && !absent(progress.scanned_bytes) ? ` (${bytes(progress.scanned_bytes)})` : "";
    const of = progress?.total && !scan.isTail ? ` of ${count(progress.total)}` : "";
    // Of a tail, records arrive before the progress that counts them.
    const seen = progress ? Math.max(progress.scanned, scan.isTail ? scan.arrived : 0) : 0;
    const scanned = progress ? `, ${count(seen)}${of} scanned${size}` : "";
    return h(
      "div.scan",
      { "data-key": "scan" },
      scan.isRunning && scan.isTail ? [h("span.follow-dot", { "aria-hidden": "true" }), "Following: new records come first"] : null,
      scan.isRunning && !scan.isTail ? [h("span.spinner", { "aria-hidden": "true" }), "Reading\u2026"] : null,
      scan.isRunning && !scan.isTail && progress?.total ? meter(progress.scanned / progress.total, "", `${Math.round((100 * progress.scanned) / progress.total)} % scanned`) : null,
      scan.error && !this.records.length ? null : h("span", {}, `${counted(this.records.length, "record")} found${scanned}`),
      end ? h("span", {}, reasonOf(end.reason)) : null,
      failed.length ? h("span.warning", {}, failed.slice(0, 3).map((each) => shown(sentence(`partition ${each.partition}: ${each.sentence}`)))) : null,
      end?.next && !scan.isRunning ? this.onwards(end.next) : null,
      this.records.length ? this.downloads() : null,
    );
  }

  onwards(next) {
    // A tail ends at places from which reading goes on, whatever it began with.
    const isNewest = !this.scan.isTail && this.page.get("begin", "newest") === "newest";
    const on = isNewest ? { before: next } : { begin: "next", at: next };
    return button(isNewest ? "Older ones" : "Read on", () => {
      this.asked = null;
      this.page.set({ ...on, tail: "" });
    }, { class: "quiet" });
  }

  downloads() {
    const { topic, partition, from, filter, key, header, limit } = this.question();
    // Those that are newest now are others when the download begins.
    if (this.scan.isRunning || this.scan.isTail || from.startsWith("newest")) return null;
    const href = address("/api/download", { topic, partition, from, filter, key, header, limit });
    return h("a.button.quiet", { href, download: "" }, "Download as JSON lines");
  }

  body() {
    const { scan, records } = this;
    if (!scan) return emptyBox("Which messages?", "Choose a topic, and where to read. Nothing is read before that.");
    const error = scan.error ? (records.length ? notice("warning", shown(scan.error.message)) : errorBox(scan.error, () => this.read())) : null;
    if (!records.length) return [error, error ? null : scan.isRunning ? emptyBox(scan.isTail ? "Waiting for new records" : "Reading\u2026", scan.isTail ? "What producers send from now on appears here." : null) : this.nothing()];
    return [error, this.table()];
  }

  nothing() {
    const { page } = this;
    return page.get("filter") || page.get("key") || page.get("header") ? emptyBox("No record fits the filter", "Read from further back, or widen the filter.") : emptyBox("No record there", "The topic, or this part of it, holds no records.");
  }

  table() {
    return h(
      "div.table-box.records",
      { "data-key": "records", class: this.records.every(isOfToday) ? "today" : "" },
      h(
        "div.table-scroll",
        { tabindex: "0", role: "region", "aria-label": "Records" },
        h(
          "table",
          {},
          h("caption.unseen", {}, "Records"),
          h("colgroup", {}, ["open", "partition", "offset", "time", "key", "value", "size", "marks"].map((name) => h(`col.c-${name}`))),
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span.unseen", {}, "Open")), HEADINGS.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, name)))),
          h("tbody", {}, records(this)),
        ),
      ),
    );
  }
}

const HEADINGS = [["Partition", 1], ["Offset", 1], ["Time"], ["Key"], ["Value"], ["Size", 1], ["Marks"]];

function records(view) {
  return view.records.map((record) => {
    const id = recordKey(record);
    const isOpen = view.open.has(id);
    const turn = () => {
      if (isOpen) view.open.delete(id);
      else view.open.add(id);
      view.draw();
    };
    const opener = button(icon("M6 3.5L10.5 8 6 12.5"), turn, { "aria-expanded": String(isOpen), "aria-label": `Record ${record.offset} of partition ${record.partition}`, title: isOpen ? "Close" : "Show all of it" });
    const row = h(
      "tr",
      { "data-key": `row-${id}` },
      h("td.opener", {}, opener),
      h("td.number", {}, String(record.partition)),
      h("td.number.mono", {}, String(record.offset)),
      h("td.mono", {}, isOfToday(record) ? timeOfDay(record.timestamp_ms) : clock(record.timestamp_ms)),
      h("td.key", {}, h("span.cut", {}, brief(record.key))),
      h("td.value", {}, h("span.cut", {}, record.error ? h("span.warning", {}, shown(record.error)) : brief(record.value))),
      h("td.number", {}, record.is_control ? "\u2013" : bytes(record.size_bytes)),
      h("td", {}, marks(record)),
    );
    return isOpen ? [row, h("tr.detail", { "data-key": `detail-${id}` }, h("td", { colspan: "8" }, recordDetail(view.page, record)))] : row;
  });
}

const isOfToday = (record) => absent(record.timestamp_ms) || new Date(record.timestamp_ms).toDateString() === new Date().toDateString();

function brief(part) {
  if (part.text === null) return h("span.null", {}, "null");
  if (part.text === "") return h("span.null", {}, "empty");
  return shown(part.text.slice(0, 400));
}

function marks(record) {
  const state = record.transaction?.state;
  const tones = { aborted: "critical", open: "warning" };
  const headers = record.header_count ?? 0;
  return h(
    "span.badges",
    {},
    record.is_control ? badge("marker", "info") : null,
    state && state !== "committed" ? badge(state, tones[state] ?? "plain", `Its transaction is ${state}.`) : null,
    record.error || record.key.error || record.value.error ? badge("unreadable", "warning", "It does not fit its schema or format.") : null,
    headers ? badge(counted(headers, "header")) : null,
  );
}

const REASONS = {
  limit: "There may be more.",
  end: "That is all.",
  stopped: "Stopped.",
  budget: "One search reads no further: narrow it, or read on.",
  failed: "Some partitions could not be read.",
};

const reasonOf = (reason) => REASONS[reason] ?? (reason ? `${String(reason).replaceAll("_", " ")}.` : "");

function fromOf(page) {
  const at = page.get("at");
  switch (page.get("begin", "newest")) {
    case "earliest":
      return "earliest";
    case "offset":
      return `offset:${at || 0}`;
    case "time":
      return `time:${at || 0}`;
    case "next":
      return at;
    default:
      return `newest:${page.get("limit", "100")}`;
  }
}

function localTime(ms) {
  if (!/^\d+$/.test(ms)) return "";
  const at = new Date(Number(ms));
  const local = new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  // An address may have any number, also one that is no date.
  return Number.isNaN(local.getTime()) ? "" : local.toISOString().slice(0, 19);
}
