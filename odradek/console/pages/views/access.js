// Rights, users and quotas; and the question "may X do Y, and why".

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, count, percent, sentence } from "../code/format.js";
import { badge, choice, emptyBox, field, notice, pageHead, panel, searchField, sign, tabs } from "../code/parts.js";
import { table } from "../code/table.js";

export const title = () => "Access";

const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "alter-configs", "describe-configs", "cluster-action", "idempotent-write", "create-tokens", "describe-tokens", "two-phase-commit"];
const RESOURCES = ["topic", "group", "cluster", "transactional-id", "delegation-token", "user"];

export function start(page) {
  const question = new Question(page);
  return page.live({
    seconds: 15,
    load: (signal) => get("/api/access", { search: page.get("search"), page: page.get("page") }, { signal }),
    render: (data) => body(page, data, question),
    frame: (inner) => [pageHead("Access"), inner],
  });
}

function body(page, data, question) {
  const tab = page.get("tab");
  const drawn = tab === "users" ? userTable(page, data.users) : tab === "quotas" ? quotaTable(page, data.quotas) : ruleTable(page, data);
  return [
    question.panel(),
    data.has_authorizer === false ? notice("warning", [h("strong", {}, "This cluster checks no rights."), " Every client may do everything."]) : null,
    data.errors.length ? notice("info", data.errors.slice(0, 3).map((each) => h("div", {}, shown(sentence(each))))) : null,
    tabs("tab", tab, [["", "Rules", data.total], ["users", "Users", data.user_count], ["quotas", "Quotas", data.quota_count]]),
    h("div.bar", { "data-key": "bar" }, searchField(page, "Search by name"), tab ? null : defaults(data)),
    drawn,
  ];
}

function defaults(data) {
  const found = [];
  if (data.super_users?.length) found.push(["super users: ", shown(data.super_users.join(", "))]);
  if (data.allow_everyone) found.push(["what no rule names is open to all"]);
  return found.length ? h("span.muted", {}, found.map((each, at) => [at ? "; " : "", each])) : null;
}

class Question {
  constructor(page) {
    this.page = page;
    this.answer = null;
    this.error = null;
    this.isAsking = false;
    if (page.get("principal")) this.ask();
  }

  async ask() {
    const { page } = this;
    Object.assign(this, { answer: null, error: null, isAsking: true });
    try {
      const resource = page.get("kind", "topic") === "cluster" ? "cluster" : `${page.get("kind", "topic")}:${page.get("resource")}`;
      this.answer = await get("/api/access/check", { principal: page.get("principal"), operation: page.get("operation", "read"), resource, host: page.get("host") }, page);
    } catch (error) {
      if (error.status === undefined && error.name !== "AbortError") throw error;
      if (error.name !== "AbortError") this.error = error;
    }
    this.isAsking = false;
    page.draw();
  }

  submit(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target));
    this.page.set(values);
    this.ask();
  }

  panel() {
    const { page } = this;
    const words = (name) => [name, name.replaceAll("-", " ")];
    return panel(
      "May this user do that?",
      h(
        "form.panel-body.bar",
        { onsubmit: (event) => this.submit(event) },
        h("div.field.wide", {}, field("User", h("input", { name: "principal", required: true, value: page.get("principal"), placeholder: "User:alice", autocomplete: "off", spellcheck: "false" }))),
        field("Operation", choice("operation", page.get("operation", "read"), OPERATIONS.map(words))),
        field("On", choice("kind", page.get("kind", "topic"), RESOURCES.map(words))),
        h("div.field.wide", {}, field("Name", h("input", { name: "resource", value: page.get("resource"), placeholder: "payments", autocomplete: "off", spellcheck: "false" }))),
        h("div.field.narrow", {}, field("From host", h("input", { name: "host", value: page.get("host"), placeholder: "any", autocomplete: "off", spellcheck: "false" }))),
        h("button.main", { type: "submit" }, "Ask"),
      ),
      this.told(),
    );
  }

  told() {
    if (this.isAsking) return h("div.answer", {}, h("span.spinner", { "aria-hidden": "true" }), "Asking\u2026");
    if (this.error) return h("div.answer", { role: "status" }, sign("warning"), shown(this.error.message));
    if (!this.answer) return null;
    const { allowed, why, is_certain: isCertain } = this.answer;
    const word = `${isCertain ? "" : "Probably "}${allowed ? "yes" : "no"}`;
    return h(
      "div.answer",
      { role: "status" },
      sign(allowed ? "ok" : "critical"),
      h("div", {}, h("strong", { class: allowed ? "ok" : "critical" }, sentence(word)), " ", shown(sentence(why)), isCertain ? null : h("div.muted", {}, "The brokers' super users and defaults are not known to you.")),
    );
  }
}

const spaced = (value) => String(value).replaceAll(/[-_]/g, " ");

function unknown(what) {
  return emptyBox(`You may not see the ${what}`, "That needs the right to describe the cluster.");
}

function ruleTable(page, data) {
  if (data.total === null) return data.has_authorizer === false ? emptyBox("There is no rule", "Without an authorizer, rules would have no effect.") : unknown("rules");
  return table({
    page,
    caption: "Rules",
    rows: data.rules,
    paged: { total: data.total, page: data.page, pages: data.pages },
    size: 500,
    sorted: "principal",
    keyOf: (row) => JSON.stringify(row),
    empty: page.get("search") ? emptyBox("No rule is like that") : emptyBox("There is no rule", h("code", {}, "odradek acl add"), " makes one."),
    columns: [
      { key: "principal", label: "User", head: true, wide: true, sort: (row) => row.principal, cell: (row) => shown(row.principal) },
      { key: "permission", label: "Rule", sort: (row) => row.permission, cell: (row) => badge(row.permission, row.permission === "deny" ? "critical" : "ok") },
      { key: "operation", label: "Operation", sort: (row) => row.operation, cell: (row) => spaced(row.operation) },
      { key: "type", label: "On", sort: (row) => row.resource_type, cell: (row) => spaced(row.resource_type) },
      { key: "name", label: "Name", wide: true, sort: (row) => row.resource_name, cell: nameCell },
      { key: "host", label: "From host", sort: (row) => row.host, cell: (row) => (row.host === "*" ? "any" : shown(row.host)) },
    ],
  });
}

function nameCell(row) {
  if (row.resource_name === "*") return h("span.muted", {}, "all");
  return [shown(row.resource_name), row.pattern_type === "prefixed" ? h("span.muted", {}, "\u2026 (names that begin so)") : null];
}

function userTable(page, users) {
  if (!users) return unknown("users");
  return table({
    page,
    caption: "Users",
    rows: users,
    sorted: "name",
    keyOf: (row) => row.name,
    empty: page.get("search") ? emptyBox("No user has such a name") : emptyBox("There is no user with a password", h("code", {}, "odradek user add"), " makes one."),
    columns: [
      { key: "name", label: "User", head: true, wide: true, sort: (row) => row.name, cell: (row) => shown(row.name) },
      { key: "mechanisms", label: "Logs in by", cell: (row) => h("span.badges", {}, row.credentials.map((each) => badge(each.mechanism, "plain", `${count(each.iterations)} iterations`))) },
    ],
  });
}

const perSecond = (value) => `${count(value)}/s`;
const LIMITS = { producer_byte_rate: ["produces", byteRate], consumer_byte_rate: ["fetches", byteRate], request_percentage: ["processor time", (value) => percent(value / 100)], controller_mutation_rate: ["changes of partitions", perSecond], connection_creation_rate: ["new connections", perSecond] };

function quotaTable(page, quotas) {
  if (!quotas) return unknown("quotas");
  const part = (name) => ({ key: name, label: { user: "User", client_id: "Client id", ip: "Address" }[name], wide: true, sort: (row) => row[name], cell: (row) => (absent(row[name]) ? "\u2013" : shown(row[name])) });
  const [named, written] = [(row) => LIMITS[row.key]?.[0] ?? row.key, (row) => (absent(row.value) ? "no limit" : (LIMITS[row.key]?.[1] ?? count)(row.value))];
  return table({
    page,
    caption: "Quotas",
    rows: quotas,
    sorted: "user",
    keyOf: (row) => JSON.stringify([row.user, row.client_id, row.ip, row.key]),
    empty: page.get("search") ? emptyBox("No quota is like that") : emptyBox("There is no quota", h("code", {}, "odradek quota set"), " limits what a user or a client may use."),
    columns: [part("user"), part("client_id"), part("ip"), { key: "key", label: "Of what", sort: (row) => row.key, cell: (row) => h("span", { title: row.key }, named(row)) }, { key: "value", label: "At most", number: true, sort: (row) => row.value, cell: written }],
  });
}
