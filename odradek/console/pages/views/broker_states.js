// The states of brokers and disks, as badges.

import { h } from "../code/dom.js";
import { badge } from "../code/parts.js";

/** True if a broker serves. */
export const isAlive = (broker) => !["dead", "fenced", "gone", "offline", "unreachable", "down"].includes(broker.state);
const TONES = { alive: "ok", up: "ok", online: "ok", active: "ok", fenced: "critical", dead: "critical", down: "critical", unreachable: "critical", offline: "critical" };

/** Return the state of a broker as a badge. */
export const brokerState = (broker) => badge(String(broker.state ?? "unknown").replaceAll("_", " "), TONES[broker.state] ?? "warning");

/** Return what is wrong with disks as badges, or that all are well. */
export function diskStates(disks) {
  if (!disks.length) return h("span.muted", {}, "unknown");
  const wrong = [];
  const tell = (found, word, tone) => found.length && wrong.push(badge(found.length > 1 ? `${found.length} ${word}` : word, tone));
  tell(disks.filter((disk) => isOffline(disk)), "offline", "critical");
  tell(disks.filter((disk) => disk.is_hung), "hung", "critical");
  tell(disks.filter((disk) => disk.is_slow && !disk.is_hung), "slow", "warning");
  tell(disks.filter((disk) => rotOf(disk)), "rot", "critical");
  tell(disks.filter((disk) => !isOffline(disk) && fullness(disk) > 0.9), "nearly full", "warning");
  return h("span.states", {}, wrong.length ? wrong : badge(disks.length === 1 ? "well" : `${disks.length} well`, "ok"));
}

const isOffline = (disk) => disk.state !== undefined && disk.state !== null && !["online", "ok", "well", "alive"].includes(disk.state);
/** Return the number of replicas with rot. */
export const rotOf = (disk) => (Array.isArray(disk.rot) ? disk.rot.length : Number(disk.rot ?? 0));
/** Return the full share of a disk. */
export const fullness = (disk) => (disk.total_bytes ? 1 - disk.usable_bytes / disk.total_bytes : null);
