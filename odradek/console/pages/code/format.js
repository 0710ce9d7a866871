// Figures as people read them: units, relative times with the exact moment beside them, and counts with thin spaces.

import { h } from "./dom.js";

const NOTHING = "\u2013";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Return `null` and `undefined` as true. */
export const absent = (value) => value === null || value === undefined;

/** Return a count with its thousands apart, such as 12,345,678. */
export function count(value) {
  return absent(value) ? NOTHING : Math.round(value).toLocaleString("en");
}

/** Return a count as short as a tile needs it: 9,876 or 1.24 M. */
export function short(value) {
  if (absent(value)) return NOTHING;
  if (Math.abs(value) < 10_000) return Math.abs(value) < 10 && value % 1 ? digits(value, 2) : count(value);
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${digits(value / size)} ${unit}`;
  return count(value);
}

function digits(value, most = 3) {
  return value.toLocaleString("en", { maximumSignificantDigits: most, useGrouping: false });
}

/** Return bytes in binary units: 3.4 GiB. */
export function bytes(value) {
  if (absent(value)) return NOTHING;
  let at = 0;
  let left = Math.abs(value);
  while (left >= 1000 && at < UNITS.length - 1) (left /= 1024), (at += 1);
  const number = at === 0 ? String(Math.round(left)) : digits(left);
  return `${value < 0 ? "\u2212" : ""}${number} ${UNITS[at]}`;
}

/** Return a rate, such as 1.2 k/s. */
export const rate = (value) => (absent(value) ? NOTHING : `${short(value)}/s`);
export const byteRate = (value) => (absent(value) ? NOTHING : `${bytes(value)}/s`);

/** Return a share of 1 in percent. */
export const percent = (value) =>
  absent(value) ? NOTHING : `${(value * 100).toLocaleString("en", { maximumFractionDigits: value < 0.1 ? 1 : 0 })} %`;

/** Return a length of time with its two largest units: 2 d 4 h. */
export function duration(ms) {
  if (absent(ms)) return NOTHING;
  if (ms < 0) return `\u2212${duration(-ms)}`;
  if (ms < 1) return "0 s";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  let seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toLocaleString("en", { maximumFractionDigits: 1 })} s`;
  seconds = Math.round(seconds);
  const parts = [];
  for (const [size, unit] of [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const whole = Math.floor(seconds / size);
    if (whole || parts.length) parts.push(whole ? `${whole} ${unit}` : "");
    seconds -= whole * size;
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

const pad = (value, size = 2) => String(value).padStart(size, "0");

/** Return a moment in the browser's time zone, down to the millisecond. */
export function moment(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms`;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

function exactly(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms since 1970`;
  const minutes = -at.getTimezoneOffset();
  const zone = `UTC${minutes < 0 ? "\u2212" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
  return `${moment(ms)} (${zone}), ${ms} ms since 1970`;
}

/** Return how long ago a moment was, with the exact moment in the tooltip. */
export function ago(ms) {
  if (absent(ms) || ms < 0) return NOTHING;
  const past = Date.now() - ms;
  const words = past < -1500 ? `in ${duration(-past)}` : past < 1500 ? "just now" : `${duration(rough(past))} ago`;
  return timed(ms, words);
}

function rough(ms) {
  const size = ms < 60_000 ? 1000 : ms < 86_400_000 ? 60_000 : 3_600_000;
  return Math.floor(ms / size) * size;
}

/** Return the exact moment, with how long ago it was in the tooltip. */
export function clock(ms) {
  if (absent(ms) || ms < 0) return NOTHING;
  return timed(ms, moment(ms));
}

/** Return the time of a moment of today, with the rest in the tooltip. */
export function timeOfDay(ms) {
  return absent(ms) ? NOTHING : timed(ms, moment(ms).slice(11));
}

function timed(ms, words) {
  const at = new Date(ms);
  const valid = !Number.isNaN(at.getTime());
  return h("time", { datetime: valid ? at.toISOString() : undefined, title: exactly(ms) }, words);
}

/** Return a number with its noun: 1 topic, 2 topics. */
export function counted(value, noun, nouns = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

/** Return a remark as a sentence: with a capital letter and a full stop. */
export function sentence(remark) {
  const text = String(remark ?? "").trim();
  if (!text) return "";
  // A name at the beginning, such as payments-3 or __offsets, keeps its letters.
  const first = /^[a-z]+(?=[\s,]|$)/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?\u2026]$/.test(first) ? first : `${first}.`;
}
