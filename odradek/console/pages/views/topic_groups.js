// The groups that read a topic, with their lag on it.

import { absent, counted, duration } from "../code/format.js";
import { emptyBox, groupLink } from "../code/parts.js";
import { table } from "../code/table.js";
import { groupState, groupType } from "./groups.js";

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
      { key: "members", label: "Members", number: true, sort: membersOf, cell: (row) => (absent(membersOf(row)) ? "\u2013" : String(membersOf(row))) },
      { key: "lag", label: "Lag", number: true, sort: (row) => row.lag, cell: (row) => (absent(row.lag) ? "\u2013" : counted(row.lag, "record")) },
      { key: "behind", label: "Behind", number: true, sort: (row) => row.behind_ms, cell: (row) => duration(row.behind_ms) },
    ],
  });
}

const membersOf = (row) => (Array.isArray(row.members) ? row.members.length : row.members);
