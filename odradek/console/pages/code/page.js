// What a page is given: its root, its address, and data that stay fresh while somebody looks.
//
// A page loads, draws, and loads again after some seconds. It stops while its tab is hidden, and ends with its signal when
// another page comes. If a load fails after one that worked, the old data stay under a notice that says how old they are.

import { stream, troubleOf } from "./api.js";
import { h, redraw, say } from "./dom.js";
import { duration } from "./format.js";
import { button, errorBox, loadingBox, notice } from "./parts.js";
import { go, query, setQuery } from "./router.js";

const PATIENCE_MS = 250;
const RETRY_MS = [1000, 2000, 5000];

export class Page {
  constructor(root, parts) {
    this.root = root;
    this.parts = parts;
    this.ending = new AbortController();
    this.signal = this.ending.signal;
    this.draw = () => undefined;
    this.wake = () => undefined;
    this.take = () => undefined;
    this.status = { at: null, error: null, isPaused: false, retryAt: null };
  }

  get(name, otherwise = "") {
    return query().get(name) ?? otherwise;
  }

  number(name, otherwise) {
    const value = query().get(name);
    return value !== null && /^\d{1,15}$/.test(value) ? Number(value) : otherwise;
  }

  set(changes, options) {
    setQuery(changes, options);
  }

  /** Called when the same page gets other parameters. */
  changed() {
    this.draw();
    this.wake();
  }

  end() {
    this.ending.abort();
    this.wake();
  }

  /**
   * Keep data fresh: `load(signal)` returns them, `render(data)` returns nodes. With `events`, an address of a stream,
   * its events are the data instead. Ends when the page does.
   */
  async live({ load, render, seconds = 5, events = null, frame = (body) => body }) {
    let data;
    this.draw = () => {
      if (this.signal.aborted) return;
      const { error } = this.status;
      let body;
      if (data !== undefined) body = [error && this.staleNotice(), render(data)];
      else if (error) body = errorBox(error, () => this.wake());
      else body = loadingBox();
      redraw(this.root, frame(body, data));
      if (data !== undefined || error) this.root.removeAttribute("aria-busy");
    };
    this.root.setAttribute("aria-busy", "true");
    const slow = setTimeout(() => data === undefined && this.draw(), PATIENCE_MS);
    const fresh = (value) => {
      if (this.status.error) say("The console answers again.");
      data = value;
      Object.assign(this.status, { at: Date.now(), error: null, retryAt: null });
      this.draw();
    };
    this.take = (value) => this.signal.aborted || fresh(value);
    let failures = 0;
    while (!this.signal.aborted) {
      try {
        if (events) await this.follow(events, fresh, () => (failures = 0));
        else fresh(await load(this.signal));
        failures = 0;
        clearTimeout(slow);
        await this.rest(events ? RETRY_MS[0] : seconds * 1000);
      } catch (error) {
        clearTimeout(slow);
        if (this.signal.aborted) return;
        if (error.status === undefined && error.name !== "AbortError") throw error;
        if (error.status === 401) return void go(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
        if (error.name === "AbortError") continue;
        const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
        // A refusal of this very address stays one: ask again, but seldom.
        const patience = [400, 403, 404].includes(error.status) ? Math.max(seconds * 1000, 10_000) : wait;
        Object.assign(this.status, { error, retryAt: Date.now() + patience });
        if ([403, 404].includes(error.status)) data = undefined;
        this.draw();
        await this.rest(patience);
      }
    }
  }

  /** Note that the cluster did not answer the console, which asks again by itself. Raises what needs a login. */
  troubled(error) {
    if (error.status === 401) throw error;
    this.status.error = error;
    this.draw();
  }

  async follow({ path, params, name }, fresh, worked) {
    const leaving = new AbortController();
    const hide = () => document.hidden && leaving.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const signal = AbortSignal.any([this.signal, leaving.signal]);
      for await (const [event, data] of stream(path, params, { signal })) {
        if (event === "trouble") this.troubled(troubleOf(data));
        if (event !== name) continue;
        worked();
        fresh(data);
      }
    } catch (error) {
      if (!leaving.signal.aborted) throw error;
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
  }

  /** Wait for some time, until somebody looks and has not paused the page, or until `wake` is called. */
  async rest(ms) {
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => (clearTimeout(timer), resolve());
    });
    while ((document.hidden || this.status.isPaused) && !this.signal.aborted)
      await new Promise((resolve) => {
        const seen = () => (document.removeEventListener("visibilitychange", seen), resolve());
        document.addEventListener("visibilitychange", seen);
        this.wake = seen;
      });
  }

  pause(isPaused) {
    this.status.isPaused = isPaused;
    if (!isPaused) this.wake();
    this.draw();
    say(isPaused ? "The page stands still." : "The page follows the cluster again.");
  }

  staleNotice() {
    const { at, error } = this.status;
    return notice("warning", [
      h("strong", {}, error.message),
      ` What you see is ${duration(Math.max(1000, Math.floor((Date.now() - at) / 1000) * 1000))} old. The page asks again by itself.`,
      button("Ask now", () => this.wake(), { class: "quiet" }),
    ]);
  }
}
