// The groups that read a topic, with their lag on it.

import { count } from "../../code/format.js";
import { emptyBox, groupLink } from "../../code/parts.js";
import { table } from "../../code/table.js";
import { behindOf, groupState, groupType, lagCell } from "../groups.js";

export function groupsTab(page, groups) {
  return table({
    page,
    caption: "Groups that read this topic",
    rows: groups,
    sorted: "id",
    keyOf: (row) => row.id,
    empty: emptyBox("No group reads this topic", "A group appears here once it has committed an offset of the topic, or has members that read it."),
    columns: [
      { key: "id", label: "Group", head: true, wide: true, sort: (row) => row.id, cell: (row) => groupLink(row.id) },
      { key: "type", label: "Type", sort: (row) => row.type, cell: groupType },
      { key: "state", label: "State", sort: (row) => row.state, cell: groupState },
      { key: "partitions", label: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions), title: "of this topic, with a committed offset" },
      { key: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: lagCell },
      { key: "behind", label: "Behind", number: true, sort: (row) => row.behind_ms, cell: behindOf },
    ],
  });
}
