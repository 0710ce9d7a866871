// The beginning: who is the user, which page does the address name, and the change from page to page.

import { redraw, say } from "./dom.js";
import { Page } from "./page.js";
import { emptyBox, errorBox, link, loadingBox, pageHead } from "./parts.js";
import { go, pageOf, startRouter } from "./router.js";
import { drawShell, listenToKeys, loadSession } from "./shell.js";

const content = document.getElementById("content");
let page = null;
let isFirst = true;

async function arrived(what) {
  if (what === "query" && page) {
    drawShell();
    return page.changed();
  }
  page?.end();
  const found = pageOf(location.pathname);
  const shown = (page = new Page(content, found?.parts ?? []));
  drawShell();
  if (!found) return unknown();
  redraw(content, loadingBox());
  scrollTo(0, 0);
  const module = await import(`../views/${found.name}.js`);
  if (shown.signal.aborted) return;
  document.title = `${module.title(shown)} \u00b7 Odradek`;
  redraw(content);
  if (!isFirst) {
    content.focus({ preventScroll: true });
    say(module.title(shown));
  }
  isFirst = false;
  try {
    await module.start(shown);
  } catch (error) {
    if (shown.signal.aborted || error.name === "AbortError") return;
    redraw(content, errorBox(error));
    throw error;
  }
}

function unknown() {
  document.title = "No such page \u00b7 Odradek";
  redraw(content, pageHead("No such page"), emptyBox("Nothing has this address.", link("/", "To the cluster")));
}

async function begin() {
  const isKnown = await learnSession();
  startRouter(arrived);
  listenToKeys(() => page);
  if (!isKnown) keepAsking();
}

/** Ask who the user is; lead to the login if there is nobody yet. False if the cluster does not answer. */
async function learnSession() {
  try {
    const session = await loadSession();
    if (session.login_needed && location.pathname !== "/login")
      history.replaceState(null, "", `/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return true;
  } catch (error) {
    if (error.status === undefined) throw error;
    // The page says by itself what does not answer. Only the frame lacks its names for now.
    return false;
  }
}

async function keepAsking() {
  do await new Promise((resolve) => setTimeout(resolve, 5000));
  while (document.hidden || !(await learnSession()));
  drawShell();
}

redraw(content, loadingBox());
begin();

export { go };
