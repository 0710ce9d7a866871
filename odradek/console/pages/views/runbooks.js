// The section of docs/operations.md about each kind of trouble. It is named and not linked: the console works offline.

export const RUNBOOKS = {
  "broker-down": "A host will not come back",
  "broker-silent": "A node is slow",
  "disk-demoted": "A disk hangs or has failed",
  "disk-full": "A disk is full",
  "disk-hung": "A disk hangs or has failed",
  "disk-offline": "A disk hangs or has failed",
  "disk-warning": "A disk is full",
  "hanging-transaction": "A transaction hangs",
  "lagging-voter": "The quorum has no leader",
  leaderless: "A partition is offline",
  "not-seen": "A node is slow",
  "no-quorum": "The quorum has no leader",
  "silent-voter": "The quorum has no leader",
  "under-min-isr": "A topic is under-replicated",
  "under-replicated": "A topic is under-replicated",
};
