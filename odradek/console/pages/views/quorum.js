// The voters and observers of the metadata log.

import { h, plain } from "../code/dom.js";
import { absent, ago, count, counted } from "../code/format.js";
import { badge } from "../code/parts.js";

const HEADINGS = [["Node"], ["Part"], ["Log end", 1], ["Behind", 1], ["Last fetch", 1]];

/** Return the voters and observers of the metadata quorum as a table. */
export function quorumTable(quorum) {
  return h(
    "div.table-scroll",
    { tabindex: "0", role: "region", "aria-label": "Quorum" },
    h(
      "table",
      {},
      h("caption.unseen", {}, "Voters and observers of the metadata log"),
      h("thead", {}, h("tr", {}, HEADINGS.map(([name, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, name)))),
      h("tbody", {}, [...quorum.voters, ...quorum.observers].map((each) => line(each))),
    ),
  );
}

/** Return how many voters may stop, as a sentence. */
export function reserveOf(quorum) {
  if (quorum.may_lose === 0) return quorum.voters.length === 1 ? "one voter alone" : "no voter may stop";
  return `${counted(quorum.may_lose, "voter")} may stop`;
}

function line(each) {
  const isLeader = each.state === "leader";
  const isVoter = each.state !== "observer";
  return h(
    "tr",
    { "data-key": `replica-${each.state}-${each.id}-${each.directory_id}`, class: each.is_silent ? "bad" : "" },
    h("td", { title: each.endpoints?.length ? plain(each.endpoints.join(", ")) : undefined }, String(each.id)),
    h("td", {}, h("span.badges", {}, isVoter ? "voter" : "observer", isLeader ? badge("leader", "info") : null, each.is_silent ? badge("silent", "critical") : null)),
    h("td.number", {}, count(each.log_end_offset)),
    h("td.number", {}, absent(each.lag) ? "unknown" : each.lag ? counted(each.lag, "record") : "0"),
    h("td.number", {}, isLeader ? "\u2013" : ago(each.last_fetch_ms)),
  );
}
