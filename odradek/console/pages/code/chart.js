// Lines over time, drawn by uPlot, for as long as the page has been open.

import { h } from "./dom.js";
import { moment } from "./format.js";

const KEPT = 600;
// Seconds between two marks of the time.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

/** Values over time that outlive a page: the newest 600 points of each name. */
export class Series {
  constructor() {
    this.times = [];
    this.columns = new Map();
  }

  /** Add one point of each line; a line without a value has a gap. */
  add(timeMs, values) {
    const seconds = timeMs / 1000;
    if (this.times.length && seconds <= this.times.at(-1)) return;
    for (const name of values.keys()) if (!this.columns.has(name)) this.columns.set(name, this.times.map(() => null));
    this.times.push(seconds);
    for (const [name, column] of this.columns) {
      column.push(values.get(name) ?? null);
      if (column.length > KEPT) column.shift();
    }
    if (this.times.length > KEPT) this.times.shift();
  }
}

const kept = new Map();

/** Return the series of a name, which stays while the tab is open. At most 50 are kept. */
export function series(name) {
  const found = kept.get(name) ?? new Series();
  kept.delete(name);
  kept.set(name, found);
  if (kept.size > 50) kept.delete(kept.keys().next().value);
  return found;
}

let library = null;

function uplot() {
  library ??= import("../vendor/uPlot.esm.js").then((module) => module.default);
  return library;
}

/** Return a chart of some lines [name, label, colour variable] of a series, with values written by `written`. */
export function chart({ key, title, data, lines, written, height = 150 }) {
  const latest = lines.map(([name, label]) => `${label} ${written(data.columns.get(name)?.at(-1) ?? null)}`).join(", ");
  const box = h("div.chart", { "data-key": key, "data-keep": "", role: "img", "aria-label": `${title}: ${latest}` });
  box.chosen = { data, lines, written, height };
  let drawn = null;
  box.refresh = (wanted) => {
    if (wanted) {
      box.chosen = wanted.chosen;
      box.setAttribute("aria-label", wanted.getAttribute("aria-label"));
    }
    drawn?.update(box.chosen);
  };
  // Drawn when the page has taken it in: a chart that is only compared with the old one is never drawn.
  requestAnimationFrame(async () => {
    if (!box.isConnected) return;
    const made = await uplot();
    if (box.isConnected) drawn = new Drawing(made, box);
  });
  return box;
}

class Drawing {
  constructor(uPlot, box) {
    this.uPlot = uPlot;
    this.box = box;
    this.names = "";
    this.watching = new ResizeObserver(() => this.size());
    this.watching.observe(box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => ((this.names = ""), this.update(box.chosen));
    this.dark.addEventListener("change", this.recolour);
    document.addEventListener("themechange", this.recolour);
    this.update(box.chosen);
  }

  size() {
    if (!this.box.isConnected) return this.close();
    this.plot?.setSize({ width: Math.max(120, this.box.clientWidth), height: this.box.chosen.height });
  }

  close() {
    this.watching.disconnect();
    this.dark.removeEventListener("change", this.recolour);
    document.removeEventListener("themechange", this.recolour);
    this.plot?.destroy();
  }

  update({ data, lines, written, height }) {
    const columns = lines.map(([name]) => data.columns.get(name) ?? data.times.map(() => null));
    const names = lines.map((line) => line.join("\u0000")).join("\u0001");
    if (names !== this.names) {
      this.plot?.destroy();
      this.plot = new this.uPlot(options(this.box, lines, written, height), [data.times, ...columns], this.box);
      this.names = names;
    } else this.plot.setData([data.times, ...columns]);
    showNewest(this.plot);
  }
}

// Without a pointer over the chart, its legend has the newest values.
function showNewest(plot) {
  if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

function options(box, lines, written, height) {
  const style = getComputedStyle(box);
  const colour = (name) => style.getPropertyValue(name).trim() || style.color;
  const axis = { stroke: resolved(box, "--muted"), grid: { stroke: resolved(box, "--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
  return {
    width: Math.max(120, box.clientWidth),
    height,
    padding: [8, 28, 0, 0],
    cursor: { drag: { x: false, y: false }, y: false },
    legend: { show: true, live: true },
    hooks: { ready: [showNewest], setCursor: [showNewest] },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 28, incrs: STEPS, values: (_, splits) => splits.map((at) => moment(at * 1000).slice(11, 19)), space: 80 },
      { ...axis, values: (_, splits) => splits.map((value) => written(value)), size: 74 },
    ],
    series: [
      { label: "Time", value: (_, at) => (at === null || at === undefined ? "\u2013" : moment(at * 1000).slice(11, 19)) },
      ...lines.map(([, label, variable]) => ({
        label,
        stroke: resolved(box, variable) || colour(variable),
        width: 1.5,
        points: { show: false },
        value: (_, value) => written(value),
      })),
    ],
  };
}

// A canvas does not know light-dark(): the colour is read from an element that has it.
function resolved(box, variable) {
  const probe = h("span", { vars: { color: `var(${variable})` } });
  box.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
