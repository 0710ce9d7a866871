// The states of brokers and disks, as badges.

import { h, plain } from "../code/dom.js";
import { badge } from "../code/parts.js";

const BROKERS = { online: "ok", silent: "critical", down: "critical" };
const DISKS = { offline: "critical", hung: "critical", full: "critical", demoted: "warning", released: "plain" };

/** True if a broker serves. */
export const isAlive = (broker) => broker.state === "online";

/** Return the state of a broker as a badge. */
export function brokerState(broker) {
  return badge(String(broker.state), BROKERS[broker.state] ?? "warning", broker.reason ? plain(broker.reason) : undefined);
}

/** Return the full share of a disk, or null if its size is not known. */
export function fullness(disk) {
  return disk.total_bytes ? 1 - disk.usable_bytes / disk.total_bytes : null;
}

/** Return what is wrong with disks as badges, or that all are well. */
export function diskStates(disks) {
  if (!disks.length) return h("span.muted", {}, "unknown");
  const found = new Map();
  for (const disk of disks) for (const [word, tone] of wrongWith(disk)) found.set(word, [...(found.get(word) ?? []), tone]);
  const badges = [...found].map(([word, tones]) => badge(tones.length > 1 ? `${tones.length} ${word}` : word, tones[0]));
  return h("span.badges", {}, badges.length ? badges : badge(disks.length === 1 ? "well" : `${disks.length} well`, "ok"));
}

function wrongWith(disk) {
  const wrong = [];
  if (disk.state !== "online") wrong.push([String(disk.state), DISKS[disk.state] ?? "warning"]);
  if (disk.is_hung && disk.state !== "hung") wrong.push(["hung", "critical"]);
  if (disk.is_full && disk.state !== "full") wrong.push(["full", "critical"]);
  if (disk.is_slow && !disk.is_hung) wrong.push(["slow", "warning"]);
  if (disk.rot) wrong.push(["rot", "critical"]);
  if (disk.errors) wrong.push(["errors", "warning"]);
  if (disk.is_cordoned) wrong.push(["cordoned", "info"]);
  if (!wrong.length && fullness(disk) > 0.9) wrong.push(["nearly full", "warning"]);
  return wrong;
}
