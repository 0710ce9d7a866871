"""Scripts for Raft clusters, in the style of etcd's interaction tests.

A script is a text file of comments (`#`), commands, and output lines (`  > ...`) below each command. A test fails if
the output differs. `pytest --rewrite` writes the output lines anew.

    cluster 1 2 3 [observers 4]   tick N SECONDS     deliver A->B     drop A->B      deliver all
    append N [count]              flush N            crash N          start N        snapshot N
    replace N (by an empty disk)  give-up N (its requests to dead nodes time out)
    add LEADER N                  remove LEADER N    resign N         status
    doubt N (a copy of its directory may be running) trust N (no copy is running)
    run SECONDS (without trouble: every message arrives, and every disk syncs)
"""

from __future__ import annotations

from pathlib import Path

from odradek.metadata_quorum.raft import membership
from odradek.metadata_quorum.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Request,
    Response,
    Vote,
    VoteAnswer,
)
from odradek.metadata_quorum.raft.voters import Voter
from odradek.wire.errors import ErrorCode
from sim.alone.raft_cluster import Cluster, Letter, Question


def run_script(path: Path) -> str:
    """Run the commands of a script, and return the script with the output that they now have."""
    runner = _Runner()
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("  >"):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"  > {each}" for each in runner.run(line.split())]
    return "\n".join(lines) + "\n"


class _Runner:
    def __init__(self) -> None:
        self.cluster: Cluster
        self._seen: list[Letter] = []
        self._roles: dict[int, str] = {}

    def run(self, words: list[str]) -> list[str]:
        match words:
            case ["cluster", *rest]:
                at = rest.index("observers") if "observers" in rest else len(rest)
                self.cluster = Cluster.of(
                    [int(each) for each in rest[:at]], [int(each) for each in rest[at + 1 :]]
                )
            case ["status"]:
                return self._status()
            case ["tick", node, seconds]:
                self.cluster.tick(int(node), float(seconds))
            case ["deliver", "all"]:
                return self._deliver_all()
            case [("deliver" | "drop") as verb, ends]:
                return self._letter(verb, ends)
            case ["run", seconds]:
                self.cluster.settle(float(seconds))
                self._seen = list(self.cluster.letters)
            case ["append", node, *count]:
                self.cluster.append(int(node), int(count[0]) if count else 1)
            case [("flush" | "crash" | "start") as verb, node]:
                getattr(self.cluster, verb)(int(node))
            case ["replace", node]:
                self.cluster.replace_disk(int(node))
            case ["give-up", node]:
                self.cluster.give_up(int(node))
            case ["snapshot", node]:
                self.cluster.write_snapshot(int(node))
            case [("add" | "remove") as verb, leader, node]:
                refusal = self._change(verb, int(leader), int(node))
                if refusal is not ErrorCode.NONE:
                    return [f"refused: {refusal.name}"]
            case [("doubt" | "trust") as verb, node]:
                self._abstain(int(node), abstains=verb == "doubt")
            case ["resign", node]:
                self._resign(int(node))
            case _:
                raise ValueError(f"unknown command in the Raft script: {' '.join(words)}")
        return self._news()

    def _letter(self, verb: str, ends: str) -> list[str]:
        letter = next(each for each in self.cluster.letters if _ends(each) == ends)
        at = self.cluster.letters.index(letter)
        getattr(self.cluster, verb)(at)
        self._seen = [each for each in self._seen if each is not letter]
        return [f"({_said(letter)})", *self._news()]

    def _deliver_all(self) -> list[str]:
        """Deliver all letters until only fetches without news remain. Disks sync at once."""
        for _ in range(200):
            for node_id in self.cluster.nodes:
                self.cluster.flush(node_id)
            if not self.cluster.letters:
                break
            self.cluster.deliver(0)
        self._seen = list(self.cluster.letters)
        return self._roles_news()

    def _change(self, verb: str, leader_id: int, node_id: int) -> ErrorCode:
        core = self.cluster.nodes[leader_id].core
        assert core is not None
        voter = Voter(self.cluster.nodes[node_id].key)
        if verb == "add":
            refusal = membership.refusal_to_add(core, voter)
            changed = core.voters.with_voter(voter)
        else:
            refusal = membership.refusal_to_remove(core, voter.key)
            changed = core.voters.without(node_id)
        if refusal is ErrorCode.NONE:
            self.cluster.append(leader_id, voters=changed)
        return refusal

    def _resign(self, node_id: int) -> None:
        core = self.cluster.nodes[node_id].core
        assert core is not None
        core.resign(self.cluster.now)
        self.cluster.tick(node_id, 0)

    def _abstain(self, node_id: int, *, abstains: bool) -> None:
        core = self.cluster.nodes[node_id].core
        assert core is not None
        core.abstain(abstains, self.cluster.now)
        self.cluster.tick(node_id, 0)

    # -- output -----------------------------------------------------------------------------------------------

    def _news(self) -> list[str]:
        lines = self._roles_news()
        for letter in self.cluster.letters:
            if not any(letter is seen for seen in self._seen):
                lines.append(f"{_ends(letter)}: {_said(letter)}")
        self._seen = list(self.cluster.letters)
        return lines

    def _roles_news(self) -> list[str]:
        lines = []
        for node_id in self.cluster.nodes:
            state = self._state(node_id)
            if self._roles.get(node_id) != state:
                self._roles[node_id] = state
                lines.append(f"{node_id} is {state}")
        return lines

    def _state(self, node_id: int) -> str:
        core = self.cluster.nodes[node_id].core
        if core is None:
            return "down"
        leader = "" if core.leader_id in (None, node_id) else f" of {core.leader_id}"
        return f"{type(core.role).__name__}{leader}, epoch {core.epoch}, committed {core.high_watermark}"

    def _status(self) -> list[str]:
        lines = []
        for node_id, node in self.cluster.nodes.items():
            log = " ".join(f"{each.base_offset}:{each.epoch}" for each in node.entries)
            start = f"[snapshot to {node.snapshot.end.offset}] " if node.snapshot else ""
            voters = "" if node.core is None else f" voters {','.join(map(str, node.core.voters.node_ids))}"
            lines.append(f"{node_id} {self._state(node_id)}; log {start}{log or '-'};{voters}")
        return lines


def _ends(letter: Letter) -> str:
    if isinstance(letter, Question):
        return f"{letter.sender}->{letter.receiver}"
    return f"{letter.question.receiver}->{letter.question.sender}"


def _said(letter: Letter) -> str:
    return _request(letter.request) if isinstance(letter, Question) else _response(letter.response)


def _request(request: Request) -> str:
    match request:
        case Vote(pre_vote=pre_vote):
            kind = "PreVote" if pre_vote else "Vote"
            return f"{kind} epoch {request.epoch}, my log ends at {request.log_end.offset}:{request.log_end.epoch}"
        case BeginEpoch():
            return f"BeginEpoch {request.epoch}"
        case EndEpoch():
            return f"EndEpoch {request.epoch}, successors {','.join(map(str, request.successors))}"
        case Fetch():
            return f"Fetch from {request.offset}:{request.last_epoch}"


def _response(response: Response) -> str:
    error = "" if response.error is ErrorCode.NONE else f" {response.error.name}"
    match response:
        case VoteAnswer(granted=granted):
            return f"{'granted' if granted else 'denied'} in epoch {response.epoch}{error}"
        case EpochAnswer():
            return f"epoch {response.epoch}{error}"
        case FetchAnswer(diverging=diverging, snapshot=snapshot) if error == "":
            if diverging is not None:
                return f"logs part after {diverging.offset}:{diverging.epoch}"
            if snapshot is not None:
                return f"load the snapshot to {snapshot.offset}:{snapshot.epoch}"
            records = " ".join(f"{each.base_offset}:{each.epoch}" for each in response.batches)
            return f"records {records or '-'}, committed {response.high_watermark}"
        case _:
            return error.strip()
