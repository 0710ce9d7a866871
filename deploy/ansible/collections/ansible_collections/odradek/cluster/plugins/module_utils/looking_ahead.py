"""Computes which partitions become unavailable while nodes of a cluster restart, and what the cluster lacks afterwards.
It uses the answers of the command `odradek`.

`status` is the output of `odradek cluster status --json`, and `partitions` is the output of `odradek partition list
--json`.

When nodes stop, there are three kinds of partitions. Some stay available, because enough other replicas are in sync.
Some become unavailable in any order of restarts, because they have a single replica, or no more replicas than
`min.insync.replicas`. All other partitions become unavailable only because other replicas are out of sync or moving. A
restart waits for these replicas.
"""

from __future__ import annotations

QUORUM = "quorum"
ALL = "all"
_TEXTS = {
    frozenset({"read", "write"}): "cannot be read or written",
    frozenset({"read"}): "cannot be read",
    frozenset({"write"}): "cannot be written",
}


def name_of(partition: dict) -> str:
    """Return the name of a partition in the form of `odradek cluster status`."""
    return f"{partition['topic']}-{partition['partition']}"


def absent_brokers(status: dict) -> set[int]:
    """Return the ids of brokers that are offline, or are silent voters, whose sessions will end soon."""
    found = {broker["broker"] for broker in status["brokers"] if not broker["online"]}
    return found | set((status["quorum"] or {}).get("silent_voters", []))


def losses(partition: dict, stopping: set[int], absent: set[int]) -> tuple[frozenset, frozenset]:
    """Return the operations (`read`, `write`) that a partition refuses while the brokers `stopping` are down.

    There are two sets. The operations in the first set continue if the restart waits. The operations in the second set
    are refused in any order of restarts.
    """
    adding, removing = set(partition["adding"]), set(partition["removing"])
    replicas = set(partition["replicas"])
    in_sync = set(partition["isr"]) - absent
    at_best = replicas - removing
    least = min(partition.get("min_isr") or 1, len(replicas - adding) or 1)
    least_at_best = min(partition.get("min_isr") or 1, len(at_best) or 1)
    if partition["leader"] is None or not in_sync & stopping:
        return frozenset(), frozenset()
    left, left_at_best = in_sync - stopping, at_best - stopping
    lost = set()
    if not left:
        lost.add("read")
    if len(in_sync) >= least > len(left):
        lost.add("write")
    unspared = set()
    if not left_at_best:
        unspared.add("read")
    if len(left_at_best) < least_at_best:
        unspared.add("write")
    return frozenset(lost - unspared), frozenset(lost & unspared)


def quorum_losses(status: dict, stopping: set[int]) -> tuple[str | None, str | None]:
    """Return two sentences about the quorum, or None in place of a sentence that is not true.

    The first sentence says that the quorum would lose its majority now, which waiting avoids. The second says that
    the quorum loses its majority in any case.
    """
    quorum = status["quorum"]
    if quorum is None or quorum["leader"] is None or quorum["leader"] < 0:
        return "the quorum of controllers has no leader", None
    voters = set(quorum["voters"])
    majority = len(voters) // 2 + 1
    if len(voters - stopping) < majority:
        return None, f"the quorum of {len(voters)} controllers has no majority"
    left = voters - set(quorum["silent_voters"]) - stopping
    if len(left) < majority:
        silent = ", ".join(map(str, sorted(set(quorum["silent_voters"]) - stopping)))
        return f"the quorum of controllers would have no majority, since these are silent: {silent}", None
    return None, None


def look_ahead(status: dict, partitions: list, stopping: list) -> dict:
    """Return sentences about what becomes unavailable while these nodes are down, by partition name or `quorum`.

    `refused` has losses that waiting avoids, `unspared` losses that nothing avoids.
    """
    nodes = set(stopping)
    absent = absent_brokers(status) - nodes
    refused: dict[str, str] = {}
    unspared: dict[str, str] = {}
    if not nodes:
        return {"refused": refused, "unspared": unspared}
    waiting, unavoidable = quorum_losses(status, nodes)
    if waiting:
        refused[QUORUM] = waiting
    if unavoidable:
        unspared[QUORUM] = unavoidable
    for partition in partitions:
        spared, lost = losses(partition, nodes, absent)
        if spared:
            refused[name_of(partition)] = _TEXTS[spared]
        elif lost:
            unspared[name_of(partition)] = _TEXTS[lost]
    return {"refused": refused, "unspared": unspared}


def accepted_by(name: str, words: list) -> bool:
    """True if an operator accepts the loss of a partition: `words` has its name, its topic, or the word `all`."""
    return ALL in words or name in words or (name != QUORUM and name.rpartition("-")[0] in words)


def summary(found: dict, most: int = 3) -> list:
    """Return a text for each kind of loss, with the number of partitions and the first `most` of them."""
    texts = [found[QUORUM]] if QUORUM in found else []
    kinds: dict[str, list[str]] = {}
    for name, text in found.items():
        if name != QUORUM:
            kinds.setdefault(text, []).append(name)
    for text, names in sorted(kinds.items()):
        shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
        texts.append(f"{len(names)} partition{'s' if len(names) != 1 else ''} {text}: {shown}")
    return texts


def lacking_before(status: dict, partitions: list, nodes: list) -> dict:
    """Return the cluster's deficits before these nodes restart, such as offline brokers. Leave out deficits that these
    nodes cause.
    """
    step = set(nodes)
    quorum = status["quorum"] or {}
    down = sorted(broker["broker"] for broker in status["brokers"] if not broker["online"])
    down = [broker for broker in down if broker not in step]
    away = [
        [name, each["broker"]]
        for each in status.get("replicas_on_disks_away", [])
        for name in each["partitions"]
    ]
    behind = []
    for partition in partitions:
        for broker in sorted(set(partition["replicas"]) - set(partition["isr"]) - step - set(down)):
            behind.append([name_of(partition), broker])
    return {
        "down": down,
        "silent": [voter for voter in quorum.get("silent_voters", []) if voter not in step],
        "behind": behind + away,
        "offline": [
            name_of(each)
            for each in partitions
            if each["leader"] is None and not set(each["replicas"]) & step
        ],
    }


def is_lost(partition: dict) -> bool:
    """True if records were lost with their only replica: the partition stays without a leader until an operator
    elects one.
    """
    found = partition.get("leaderless")
    return (
        partition["leader"] is None
        and found is not None
        and not found["complete_replicas"]
        and found["last_leader"] is None
    )


def lacking_since(status: dict, partitions: list, before: dict) -> tuple[list, int]:
    """Return sentences about the cluster's deficits that did not exist in `before`, and their number."""
    found, count = [], 0
    quorum = status["quorum"]
    if quorum is None or quorum["leader"] is None or quorum["leader"] < 0:
        found.append("the quorum of controllers has no leader")
    elif silent := [voter for voter in quorum["silent_voters"] if voter not in before["silent"]]:
        found.append(f"controllers that vote are silent: {', '.join(map(str, silent))}")
    absent = {broker["broker"] for broker in status["brokers"] if not broker["online"]}
    if missed := sorted(absent - set(before["down"])):
        found.append(f"brokers are not online: {', '.join(map(str, missed))}")
    down = set(before["down"])
    excused = {(name, broker) for name, broker in before["behind"]}
    leaderless, behind = [], []
    for partition in partitions:
        name, replicas = name_of(partition), set(partition["replicas"])
        if partition["leader"] is None:
            if name not in before["offline"] and not replicas & down and not is_lost(partition):
                leaderless.append(name)
            continue
        late = replicas - set(partition["isr"]) - set(partition["adding"]) - down
        if any((name, broker) not in excused for broker in late):
            behind.append(name)
    for names, text in ((leaderless, "have no leader"), (behind, "are not fully replicated")):
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            found.append(f"partitions {text}: {shown}")
            count += len(names)
    return found, count + len(missed)
