// JSON laid out and coloured without being parsed into values: a number keeps all its digits, a name given twice stays.

import { h, shown } from "../code/dom.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]|\s+|./gs;
const MOST = 200_000;
// Deeper text would be mostly indentation: its size grows with the square of the depth.
const DEPTH_MOST = 64;

/** Return nodes of laid out JSON, or null if the text is none, or is too long or too deep to be worth it. */
export function laidOut(text) {
  if (text.length > MOST || !isJson(text)) return null;
  const out = [];
  let depth = 0;
  const tokens = text.match(TOKENS).filter((token) => token.trim());
  const line = () => out.push(`\n${"  ".repeat(depth)}`);
  for (const [at, token] of tokens.entries()) {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      out.push(token);
      depth += 1;
      if (depth > DEPTH_MOST) return null;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      if (tokens[at - 1] !== "{" && tokens[at - 1] !== "[") line();
      out.push(token);
    } else if (token === ",") {
      out.push(token);
      line();
    } else if (token === ":") out.push(": ");
    else out.push(coloured(token, next));
  }
  return out;
}

function isJson(text) {
  if (!/^\s*[{["\d\-tfn]/.test(text)) return false;
  try {
    JSON.parse(text);
  } catch {
    return false;
  }
  return true;
}

function coloured(token, next) {
  if (token[0] === '"') return h(next === ":" ? "span.j-key" : "span.j-text", {}, shown(token));
  return h(/[\d-]/.test(token[0]) ? "span.j-number" : "span.j-word", {}, token);
}
