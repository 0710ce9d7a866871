// The voters and observers of the metadata log.

import { h } from "../code/dom.js";
import { ago, count, counted } from "../code/format.js";
import { badge } from "../code/parts.js";

/** Return the voters and observers of the metadata quorum as a table. */
export function quorumTable(quorum) {
  const end = quorum.high_watermark;
  const rows = [...quorum.voters.map((each) => [each, "voter"]), ...quorum.observers.map((each) => [each, "observer"])];
  return h(
    "div.table-scroll",
    { tabindex: "0", role: "region", "aria-label": "Quorum" },
    h(
      "table",
      {},
      h("caption.unseen", {}, "Voters and observers of the metadata log"),
      h("thead", {}, h("tr", {}, ["Node", "Part", "Log end", "Behind", "Last fetch"].map((name, at) => h("th", { scope: "col", class: at > 1 ? "number" : "" }, name)))),
      h("tbody", {}, rows.map(([each, part]) => voter(each, part, quorum, end))),
    ),
  );
}

function voter(each, part, quorum, end) {
  const isLeader = each.id === quorum.leader_id;
  const behind = isLeader ? 0 : Math.max(0, (end ?? 0) - (each.log_end_offset ?? 0));
  return h(
    "tr",
    { "data-key": `voter-${part}-${each.id}` },
    h("td", {}, String(each.id), " ", isLeader ? badge("leader", "info") : null),
    h("td", {}, part),
    h("td.number", {}, each.log_end_offset < 0 ? "\u2013" : count(each.log_end_offset)),
    h("td.number", {}, each.log_end_offset < 0 ? "unknown" : behind ? counted(behind, "record") : "0"),
    h("td.number", {}, isLeader ? "\u2013" : ago(each.last_fetch_ms)),
  );
}
