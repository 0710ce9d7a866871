// The login, with a user of the cluster: the brokers decide, the console only passes the words on.

import { post } from "../code/api.js";
import { h, redraw, shown } from "../code/dom.js";
import { button, choice, field, notice } from "../code/parts.js";
import { pageOf } from "../code/router.js";
import { loadSession, whoAmI } from "../code/shell.js";

export const title = () => "Log in";

export async function start(page) {
  const form = { error: null, isSending: false, mechanism: null };
  page.draw = () => redraw(page.root, card(page, form));
  try {
    // Those who were logged in until now do not know yet by which mechanisms one can.
    if (!whoAmI().login_needed) await loadSession();
  } catch (error) {
    if (error.status === undefined) throw error;
    form.error = error.message;
  }
  page.draw();
}

function card(page, form) {
  const { mechanisms = [], certificate_user: holder } = whoAmI();
  const names = mechanisms.length ? mechanisms : ["SCRAM-SHA-256"];
  const chosen = form.mechanism ?? names[0];
  const isToken = chosen === "OAUTHBEARER";
  const free = { autocapitalize: "none", spellcheck: "false", required: true };
  return h(
    "section.login",
    { "aria-label": "Log in" },
    h("h1", {}, "Odradek"),
    h("p", {}, "Log in with a user of the cluster. You see what this user may see."),
    form.error ? notice("critical", shown(form.error)) : null,
    holder ? byCertificate(page, form, holder) : null,
    h(
      "form",
      { onsubmit: (event) => submit(event, page, form) },
      names.length > 1 ? field("By", choice("mechanism", chosen, names.map((name) => [name, name]), (value) => ((form.mechanism = value), page.draw()))) : h("input", { type: "hidden", name: "mechanism", value: chosen }),
      isToken
        ? field("Token", h("textarea", { name: "token", ...free }))
        : [field("User", h("input", { name: "user", autocomplete: "username", ...free })), field("Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true }))],
      h(`button.${holder ? "other" : "main"}`, { type: "submit", disabled: form.isSending }, form.isSending ? "Asking the cluster\u2026" : "Log in"),
    ),
  );
}

// The certificate that the browser has shown. A click decides, so that a logout stays one.
function byCertificate(page, form, holder) {
  return h(
    "div.by-certificate",
    {},
    h("p", {}, "Your certificate stands for ", h("strong", {}, shown(holder)), "."),
    button("Log in by certificate", () => send({ certificate: true }, page, form), { class: "main", disabled: form.isSending }),
    h("p.muted", {}, "Or as another user:"),
  );
}

async function submit(event, page, form) {
  event.preventDefault();
  await send(Object.fromEntries(new FormData(event.target)), page, form);
}

async function send(values, page, form) {
  Object.assign(form, { isSending: true, error: null });
  page.draw();
  try {
    await post("/api/login", values);
    await loadSession();
    location.replace(nextOf(page));
  } catch (error) {
    if (error.status === undefined) throw error;
    Object.assign(form, { isSending: false, error: error.message });
    page.draw();
  }
}

// Only a path of this console: an address that somebody else wrote must not lead away after the login.
export function nextOf(page) {
  let url;
  try {
    url = new URL(page.get("next", "/"), location.origin);
  } catch {
    return "/";
  }
  // The whole address, because a path may begin with two slashes: by itself it would name another host.
  return url.origin === location.origin && pageOf(url.pathname) ? url.href : "/";
}

