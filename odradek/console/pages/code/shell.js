// The frame around all pages: the way to each page, the state of the cluster, the theme, the user, and the keys.

import { get, post } from "./api.js";
import { h, icon, plain, redraw, say, shown } from "./dom.js";
import { button, sign } from "./parts.js";
import { go } from "./router.js";

const PLACES = [
  ["/", "Cluster", "c", "M2.5 3.5h11v3.5h-11zM2.5 9h11v3.5h-11zM5 5.2h.1M5 10.7h.1"],
  ["/brokers", "Brokers", "b", "M3 4.2c0-1 2.2-1.7 5-1.7s5 .7 5 1.7v7.6c0 1-2.2 1.7-5 1.7s-5-.7-5-1.7zM3 4.2c0 1 2.2 1.7 5 1.7s5-.7 5-1.7M3 8c0 1 2.2 1.7 5 1.7s5-.7 5-1.7"],
  ["/topics", "Topics", "t", "M2.5 4h11M2.5 8h11M2.5 12h7"],
  ["/messages", "Messages", "m", "M2 3.5h12v8H7l-3 2.3V11.5H2zM5 6.4h6M5 8.7h4"],
  ["/groups", "Groups", "g", "M5.5 7.5a2 2 0 100-4 2 2 0 000 4zM10.9 7.9a1.6 1.6 0 100-3.2 1.6 1.6 0 000 3.2zM2 12.8c0-2 1.5-3.3 3.5-3.3S9 10.8 9 12.8M10.6 9.7c2 0 3.4 1.1 3.4 2.9"],
  ["/moves", "Moves", "v", "M2.5 5.5h10M10 3l2.5 2.5L10 8M13.5 10.5h-10M6 8l-2.5 2.5L6 13"],
  ["/transactions", "Transactions", "x", "M3 3.5h10v9H3zM5.5 8l1.8 1.8L11 6.2"],
  ["/clients", "Clients", "l", "M2 3.5h12v7.5H2zM5.5 13.5h5M8 11v2.5"],
  ["/access", "Access", "a", "M3.5 7.2h9v6.3h-9zM5.3 7V5a2.7 2.7 0 015.4 0v2M8 9.6v1.8"],
  ["/history", "History", "h", "M8 2.2a5.8 5.8 0 11-5.3 3.5M2.2 2.7v3.2h3.2M8 4.9V8l2.2 1.5"],
];

let session = {};
let overview = null;

/** Ask who the user is. Raises ApiError. */
export async function loadSession() {
  session = await get("/api/session");
  return session;
}

export const whoAmI = () => session;

/** Show the state of the cluster beside its name in the frame. */
export function tellState(newest) {
  overview = newest;
  drawShell();
}

/** Draw the frame for the current address. */
export function drawShell() {
  const side = document.getElementById("side");
  const isLogin = location.pathname === "/login";
  document.body.classList.toggle("without-side", isLogin);
  if (isLogin) return void redraw(side);
  redraw(
    side,
    h("a.brand", { href: "/" }, brandMark(), h("span", {}, "Odradek")),
    clusterName(),
    h("nav", { "aria-label": "Pages" }, h("ul", {}, PLACES.map(place))),
    h("div.side-foot", {}, themeSwitch(), user(), version()),
  );
}

function brandMark() {
  const mark = icon("M8 1.5v13M2.4 4.7l11.2 6.6M2.4 11.3l11.2-6.6", "M8 4.6a3.4 3.4 0 100 6.8 3.4 3.4 0 000-6.8z");
  mark.classList.add("brand-mark");
  return mark;
}

function clusterName() {
  if (!session.cluster_id) return null;
  return h("div.cluster-name", { title: `Cluster ${plain(session.cluster_id)}` }, overview ? sign(overview.judgement) : null, h("span.cut", {}, shown(session.cluster_id)));
}

function place([path, label, key, drawing]) {
  const here = location.pathname;
  const isHere = path === "/" ? here === "/" : here === path || here.startsWith(`${path}/`);
  const troubles = path === "/" ? (overview?.troubles?.length ?? 0) : 0;
  return h(
    "li",
    {},
    h(
      "a",
      { href: path, "aria-current": isHere ? "page" : undefined, title: `${label} (press g, then ${key})` },
      icon(...drawing.split("|")),
      h("span", {}, label),
      troubles ? h("span.number-of", { class: overview.judgement }, String(troubles), h("span.unseen", {}, " troubles")) : null,
    ),
  );
}

const THEMES = [["", "Auto"], ["light", "Light"], ["dark", "Dark"]];

function themeSwitch() {
  const chosen = document.documentElement.dataset.theme ?? "";
  return h(
    "div.switch",
    { role: "group", "aria-label": "Colours" },
    THEMES.map(([value, label]) => button(label, () => setTheme(value), { "aria-pressed": String(value === chosen) })),
  );
}

function setTheme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("theme", value);
  } catch {
    // The choice then lasts as long as this page.
  }
  document.dispatchEvent(new Event("themechange"));
  drawShell();
}

function user() {
  if (!session.user) return null;
  return h(
    "div.user",
    {},
    h("span.cut", { title: plain(session.user) }, shown(session.user)),
    session.mechanisms?.length || session.login_needed ? button("Log out", logOut, { class: "quiet" }) : null,
  );
}

async function logOut() {
  try {
    await post("/api/logout");
  } catch (error) {
    return say(error.message);
  }
  session = {};
  location.assign("/login");
}

function version() {
  const name = session.is_kafka ? "Apache Kafka" : "Odradek";
  return session.version ? h("div.version", {}, `${name} `, shown(session.version)) : null;
}

let isGoing = false;

/** Let keys lead: "/" to the search, "g" and a letter to a page, "p" to stand still, "?" to the list of keys. */
export function listenToKeys(currentPage) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, [contenteditable]")) return;
    const wasGoing = isGoing;
    isGoing = false;
    if (wasGoing) {
      const found = PLACES.find(([, , key]) => key === event.key);
      if (!found) return;
      event.preventDefault();
      go(found[0]);
    } else if (event.key === "g") isGoing = true;
    else if (event.key === "/") {
      const search = document.querySelector("input.search");
      if (!search) return;
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "r") currentPage()?.wake();
    else if (event.key === "p") {
      const page = currentPage();
      page?.pause(!page.status.isPaused);
    } else if (event.key === "?") showKeys();
  });
}

function showKeys() {
  const lines = [["/", "search this page"], ["r", "ask again now"], ["p", "stand still, and go on"], ...PLACES.map(([, label, key]) => [`g ${key}`, label])];
  const box = h(
    "dialog.keys",
    { "aria-label": "Keys" },
    h("h2", {}, "Keys"),
    h("dl", {}, lines.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    button("Close", () => box.close()),
  );
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}
