// The console's JSON, asked by GET, and its streams of server-sent events, read by fetch.
//
// EventSource is not used: it hides the status and the sentence of a refusal, and asks again by itself.

import { sentence } from "./format.js";

/** A refusal: its HTTP status (0: no answer), its code, and a sentence for the reader. */
export class ApiError extends Error {
  constructor(status, code, sentence) {
    super(sentence);
    this.status = status;
    this.code = code;
  }
}

/** Return an address of the interface with those parameters that have a value. */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Return a name as one part of a path. A lone surrogate, which no address can carry, becomes U+FFFD. */
export const part = (name) => encodeURIComponent(String(name).toWellFormed());

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "NO_ANSWER", "The console does not answer. Its node may have stopped.");
  }
  if (answer.ok) return answer;
  throw await refusal(answer);
}

async function refusal(answer) {
  let body = {};
  try {
    body = await answer.json();
  } catch {
    // Something between the browser and the console answered, or the answer was cut: the status has to do.
  }
  return troubleOf(body, answer.status);
}

/** Return the error that the console describes in an answer, or in the event `trouble`. */
export function troubleOf(told, status = told.status ?? 500) {
  const text = told.sentence ?? `The console answered with status ${status}.`;
  return new ApiError(status, told.code ?? String(status), sentence(text));
}

/** Ask for JSON. Raises ApiError. */
export async function get(path, params, { signal } = {}) {
  const answer = await ask(address(path, params), { signal, headers: { accept: "application/json" } });
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "CUT", "The console's answer was cut short.");
  }
}

/** Send JSON by POST: login and logout only. Raises ApiError. */
export async function post(path, body) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json", accept: "application/json" },
    body: JSON.stringify(body ?? {}),
  });
  return answer.status === 204 ? null : answer.json().catch(() => null);
}

/** Yield the events of a stream as [name, data] until it ends. Leaving the loop or the signal ends the request.
 * A view that fails on the way sends the event `trouble`. */
export async function* stream(path, params, { signal } = {}) {
  const answer = await ask(address(path, params), { signal, headers: { accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || signal?.aborted) throw error;
    throw new ApiError(0, "CUT", "The connection to the console was lost.");
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function parsed(block) {
  let name = "message";
  const lines = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) lines.push(line.slice(line[5] === " " ? 6 : 5));
  }
  return lines.length ? [name, JSON.parse(lines.join("\n"))] : null;
}
