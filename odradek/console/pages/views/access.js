// Rights, users and quotas; and the question "may X do Y, and why".

import { get } from "../code/api.js";
import { h, shown } from "../code/dom.js";
import { absent, byteRate, count, percent } from "../code/format.js";
import { badge, choice, emptyBox, field, pageHead, panel, searchField, sign, tabs } from "../code/parts.js";
import { matching, table } from "../code/table.js";

export const title = () => "Access";

const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "alter_configs", "describe_configs", "cluster_action", "idempotent_write", "create_tokens", "describe_tokens", "two_phase_commit"];
const RESOURCES = ["topic", "group", "cluster", "transactional_id", "delegation_token", "user"];

export function start(page) {
  const question = new Question(page);
  return page.live({
    seconds: 15,
    load: (signal) => get("/api/access", {}, { signal }),
    render: (data) => body(page, data, question),
    frame: (inner) => [pageHead("Access"), inner],
  });
}

function body(page, data, question) {
  const tab = page.get("tab");
  const { acls = [], users = [], quotas = [] } = data;
  const drawn = tab === "users" ? userTable(page, users) : tab === "quotas" ? quotaTable(page, quotas) : aclTable(page, acls);
  return [
    question.panel(),
    data.is_open || data.allows_everything ? h("div.notice.warning", {}, sign("warning"), h("div", {}, "This cluster checks no rights: every client may do everything.")) : null,
    tabs("tab", tab, [["", "Rules", acls.length], ["users", "Users", users.length], ["quotas", "Quotas", quotas.length]]),
    h("div.bar", { "data-key": "bar" }, searchField(page, "Search by name")),
    drawn,
  ];
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
    const words = (name) => [name, name.replaceAll("_", " ")];
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
    const { allowed, why } = this.answer;
    return h("div.answer", { role: "status" }, sign(allowed ? "ok" : "critical"), h("div", {}, h("strong", { class: allowed ? "ok" : "critical" }, allowed ? "Yes" : "No"), h("div", {}, reasons(why))));
  }
}

function reasons(why) {
  if (Array.isArray(why)) return why.map((each) => h("div", {}, shown(typeof each === "string" ? each : each.sentence ?? JSON.stringify(each))));
  return shown(why ?? "");
}

const lower = (value) => String(value ?? "").toLowerCase().replaceAll("_", " ");

function aclTable(page, acls) {
  const rows = matching(acls, page.get("search"), (row) => [row.principal, row.resource_name ?? row.name, row.operation, row.resource]);
  return table({
    page,
    caption: "Rules",
    rows,
    sorted: "principal",
    keyOf: (row) => JSON.stringify(row),
    empty: acls.length ? emptyBox("No rule is like that") : emptyBox("There is no rule", "Without rules, the authorizer's default decides. ", h("code", {}, "odradek acl add"), " makes one."),
    columns: [
      { key: "principal", label: "User", head: true, wide: true, sort: (row) => row.principal, cell: (row) => shown(row.principal) },
      { key: "permission", label: "Rule", sort: (row) => row.permission, cell: (row) => badge(lower(row.permission ?? row.permission_type), lower(row.permission ?? row.permission_type) === "deny" ? "critical" : "ok") },
      { key: "operation", label: "Operation", sort: (row) => row.operation, cell: (row) => lower(row.operation) },
      { key: "type", label: "On", sort: (row) => row.resource_type, cell: (row) => lower(row.resource_type) },
      { key: "name", label: "Name", wide: true, sort: (row) => row.resource_name ?? row.name, cell: (row) => nameCell(row) },
      { key: "host", label: "From host", sort: (row) => row.host, cell: (row) => (row.host === "*" ? "any" : shown(row.host)) },
    ],
  });
}

function nameCell(row) {
  const name = row.resource_name ?? row.name;
  const pattern = lower(row.pattern_type ?? row.pattern);
  if (name === "*") return h("span.muted", {}, "all");
  return [shown(name ?? ""), pattern === "prefixed" ? h("span.muted", {}, "\u2026 (names that begin so)") : null];
}

function userTable(page, users) {
  const nameOf = (row) => (typeof row === "string" ? row : row.user ?? row.name);
  return table({
    page,
    caption: "Users",
    rows: matching(users, page.get("search"), (row) => [nameOf(row)]),
    sorted: "name",
    keyOf: nameOf,
    empty: users.length ? emptyBox("No user has such a name") : emptyBox("There is no user with a password", h("code", {}, "odradek user add"), " makes one."),
    columns: [
      { key: "name", label: "User", head: true, wide: true, sort: nameOf, cell: (row) => shown(nameOf(row)) },
      { key: "mechanisms", label: "Logs in by", cell: (row) => h("span.badges", {}, (row.mechanisms ?? []).map((each) => badge(String(each.mechanism ?? each)))) },
      { key: "iterations", label: "Iterations", number: true, cell: (row) => (absent(row.iterations) ? "\u2013" : count(row.iterations)) },
    ],
  });
}

const LIMITS = { producer_byte_rate: byteRate, consumer_byte_rate: byteRate, request_percentage: (value) => percent(value / 100), controller_mutation_rate: (value) => `${count(value)}/s`, connection_creation_rate: (value) => `${count(value)}/s` };

function quotaTable(page, quotas) {
  const nameOf = (row) => (typeof row.entity === "string" ? row.entity : Object.entries(row.entity ?? {}).map(([kind, name]) => `${kind} ${name ?? "(default)"}`).join(", "));
  const limits = (row) => Object.entries(row.limits ?? row.values ?? { [row.key]: row.value });
  return table({
    page,
    caption: "Quotas",
    rows: matching(quotas, page.get("search"), (row) => [nameOf(row)]),
    sorted: "entity",
    keyOf: (row) => JSON.stringify(row),
    empty: quotas.length ? emptyBox("No quota is like that") : emptyBox("There is no quota", h("code", {}, "odradek quota set"), " limits what a user or a client may use."),
    columns: [
      { key: "entity", label: "For", head: true, wide: true, sort: nameOf, cell: (row) => shown(nameOf(row)) },
      { key: "limits", label: "Limits", wide: true, cell: (row) => limits(row).map(([name, value]) => h("div", {}, `${name.replaceAll("_", " ")}: `, h("strong", {}, (LIMITS[name] ?? count)(value)))) },
    ],
  });
}

