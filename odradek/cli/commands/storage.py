"""`odradek storage format|adopt|info|check-config|random-uuid`: prepare the directories of a node, and show their
contents.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cli.access.scram_users import scram_record
from odradek.cli.failure import CliError
from odradek.cli.output import counted, print_json, print_table, say
from odradek.cli.parsing import Groups, add_command, file_path, whole_number
from odradek.cli.recovering.stopped_nodes import load_config
from odradek.cli.streams.standard_streams import complain

if TYPE_CHECKING:
    from odradek.metadata_quorum.raft.voters import VoterSet
    from odradek.metadata_quorum.replica.storage_format import VoterEndpoint
    from odradek.node.configuration.node_config import NodeConfig

__all__ = ["Formatted", "format_storage_of", "register"]


def register(groups: Groups) -> None:
    """Add the command group `storage` to the parser of the command line."""
    commands = groups.add_parser("storage", help="prepare the directories of a node").add_subparsers(
        metavar="COMMAND", required=True
    )
    form = add_command(commands, "format", _format, "prepare the directories of a new node")
    form.add_argument("config", metavar="CONFIG", type=file_path, help="the node's properties file")
    form.add_argument(
        "--cluster-id",
        metavar="ID",
        help="the id of the cluster, any text (default: a random one)",
    )
    form.add_argument(
        "--ignore-formatted", action="store_true", help="skip directories that are formatted already"
    )
    voters = form.add_mutually_exclusive_group()
    voters.add_argument(
        "--standalone", action="store_true", help="this controller is the first and only voter"
    )
    voters.add_argument(
        "--initial-controllers",
        metavar="ID@HOST:PORT:UUID,...",
        help="the first voters, the same for every node; UUID becomes the id of that node's metadata directory",
    )
    voters.add_argument(
        "--no-initial-controllers", action="store_true", help="the node joins a quorum that exists already"
    )
    form.add_argument(
        "--feature",
        metavar="NAME=LEVEL",
        action="append",
        type=_feature,
        default=[],
        help="start the cluster with this feature level (repeat for more)",
    )
    form.add_argument(
        "--add-scram",
        metavar="MECHANISM=[name=USER,password=PASSWORD]",
        action="append",
        default=[],
        help="create this user with the cluster, in the syntax of Kafka's tool. More parts are possible: iterations=N, salt=BASE64, saltedpassword=BASE64, and "
        "passwordfile=FILE instead of a password that others could see (repeat for more)",
    )
    adopt = add_command(
        commands,
        "adopt",
        _adopt,
        "use blank disks that have replaced other disks of a node",
    )
    adopt.add_argument("config", metavar="CONFIG", type=file_path, help="the node's properties file")
    adopt.add_argument(
        "--same-file-system",
        action="store_true",
        help="adopt empty directories that are not mount points, too; first make sure that no disk is merely unmounted",
    )
    info = add_command(commands, "info", _info, "show what the directories of a node hold")
    info.add_argument("config", metavar="CONFIG", type=file_path, help="the node's properties file")
    _register_check(commands)
    add_command(commands, "random-uuid", _random_uuid, "print an id for a cluster or a directory")


def _register_check(commands: Groups) -> None:
    check = add_command(
        commands,
        "check-config",
        _check_config,
        "report all problems of a properties file",
    )
    check.add_argument(
        "config", metavar="CONFIG", type=file_path, help="the node's properties file; - reads standard input"
    )
    check.add_argument(
        "--allow-unknown",
        metavar="KEY",
        action="append",
        default=[],
        help="an unknown key that must not be reported (repeat for more)",
    )


def _feature(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=LEVEL")
    return name, whole_number(level, 0, (1 << 15) - 1)


class Formatted(NamedTuple):
    """The ids and directories of a node that `format_storage_of` has formatted."""

    cluster_id: str
    node_id: int
    directories: list[str]


def _format(args: argparse.Namespace) -> int:
    done = format_storage_of(
        args.config,
        cluster_id=args.cluster_id,
        ignore_formatted=args.ignore_formatted,
        standalone=args.standalone,
        initial_controllers=args.initial_controllers,
        no_initial_controllers=args.no_initial_controllers,
        features=dict(args.feature),
        users=args.add_scram,
    )
    if args.json:
        print_json(done._asdict())
    else:
        for path in done.directories:
            say(f"formatted {path} for node {done.node_id} of cluster {done.cluster_id}")
        if not done.directories:
            say("there is nothing to format")
    return 0


def _random_uuid(args: argparse.Namespace) -> int:
    from odradek.env.real import RealEnv
    from odradek.wire.uuid_text import uuid_to_text

    text = uuid_to_text(RealEnv().new_uuid())
    if args.json:
        print_json({"uuid": text})
    else:
        say(text)
    return 0


def _adopt(args: argparse.Namespace) -> int:
    """Format blank log directories, so that they belong to the same node as the directories that are formatted already.
    The command never formats the metadata log's directory.
    """
    from odradek.env.ports import DiskError, FileMissing
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.replica.storage_format import StorageError, adopt_directory, storage_info

    config, env = load_config(args.config), RealEnv()
    owner, blank = None, []
    try:
        for path in _directories(config):
            try:
                info = storage_info(env.open_dir(path))
            except FileMissing:
                info = None
            if info is not None and info.meta is not None:
                owner = info.meta
            elif path != config.metadata_log_dir:
                blank.append(path)
            else:
                raise CliError(
                    f"{path}, the directory for the metadata log, is not formatted: run `odradek "
                    "storage format`"
                )
        if owner is None:
            raise CliError(
                "none of this node's directories is formatted: run `odradek storage format` to begin a node"
            )
        for path in blank:
            if not args.same_file_system and not env.is_blank_disk(path):
                raise CliError(
                    f"{path} is not on a blank disk of its own: mount the new disk, or add --same-file-system"
                )
        for path in blank:
            directory = env.open_dir(path, create=True)
            adopt_directory(directory, owner.cluster_id, owner.node_id, env.new_uuid())
        _warn_of_modes(blank)
    except (StorageError, DiskError) as error:
        raise CliError(str(error)) from error
    if args.json:
        print_json({"node_id": owner.node_id, "directories": blank})
        return 0
    for path in blank:
        say(
            f"adopted {path} for node {owner.node_id}: start the node again, and its replicas there "
            "are copied from other brokers"
        )
    if not blank:
        say("there is no directory to adopt")
    return 0


def _info(args: argparse.Namespace) -> int:
    from odradek.env.ports import DiskError, FileMissing
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.replica.storage_format import storage_info
    from odradek.wire.uuid_text import uuid_to_text

    env = RealEnv()
    documents: list[dict[str, Any]] = []
    for path in _directories(load_config(args.config)):
        try:
            info = storage_info(env.open_dir(path))
            meta, problem, has_metadata = info.meta, info.problem, info.has_metadata_log
        except FileMissing:
            meta, problem, has_metadata = None, "does not exist", False
        except DiskError as error:
            meta, problem, has_metadata = None, str(error), False
        documents.append(
            {
                "directory": path,
                "cluster_id": meta.cluster_id if meta is not None else None,
                "node_id": meta.node_id if meta is not None else None,
                "directory_id": uuid_to_text(meta.directory_id) if meta is not None else None,
                "metadata_log": has_metadata,
                "problem": problem,
            }
        )
    if args.json:
        print_json({"directories": documents})
    else:
        header = ("DIRECTORY", "CLUSTER", "NODE", "ID", "METADATA", "PROBLEM")
        print_table(header, [tuple(document.values()) for document in documents])
    return 1 if any(document["problem"] for document in documents) else 0


def _check_config(args: argparse.Namespace) -> int:
    """Print a line for each problem and each unknown key of a properties file. Raises `CliError` if it has
    printed such a line.
    """
    from odradek.node.configuration.file_judgement import judge_file
    from odradek.node.configuration.node_config import contents_of

    path = "standard input" if args.config == "-" else args.config
    judged = judge_file(_text_of(args.config), contents_of, args.allow_unknown)
    if args.json:
        unknown = [{"key": key, "problem": problem} for key, problem in judged.unknown.items()]
        print_json({"problems": list(judged.problems), "unknown": unknown, "warnings": list(judged.warnings)})
    else:
        for problem in (*judged.problems, *judged.unknown.values()):
            say(problem)
        for warning in judged.warnings:
            complain(f"{path}: {warning}")
    count = len(judged.problems) + len(judged.unknown)
    if count:
        raise CliError(f"{path}: {counted(count, 'line')} to correct before a node can start with this file")
    return 0


def _text_of(path: str) -> str:
    """Read a properties file, or standard input for `-`. Raises `CliError`."""
    if path == "-":
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}") from error


def _who_votes(
    config: NodeConfig, standalone: bool, initial_controllers: str | None, no_initial_controllers: bool
) -> tuple[VoterEndpoint | None, VoterSet | None]:
    """Return the pair (only voter, set of all voters). The command line's options decide which of the two is set. Both
    are None for a node that joins an existing quorum, or if `controller.quorum.voters` names the voters. Raises
    `StorageError`.
    """
    from odradek.metadata_quorum.replica.storage_format import StorageError, initial_voters

    voter: VoterEndpoint | None = None
    voters: VoterSet | None = None
    if (standalone or initial_controllers is not None) and config.static_voters:
        raise StorageError(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    if standalone and config.voter is None:
        raise StorageError("You can only use --standalone on a controller.")
    if initial_controllers is not None:
        voters = initial_voters(initial_controllers, config.controller_listener_names[0])
    elif standalone or (not no_initial_controllers and _is_alone(config)):
        voter = config.voter
    elif config.is_controller and not config.static_voters and not no_initial_controllers:
        raise StorageError(
            "Because controller.quorum.voters is not set on this controller, you must specify one of the "
            "following: --standalone, --initial-controllers, or --no-initial-controllers."
        )
    return voter, voters


def format_storage_of(
    config_path: str,
    *,
    cluster_id: str | None,
    ignore_formatted: bool,
    standalone: bool = False,
    initial_controllers: str | None = None,
    no_initial_controllers: bool = False,
    features: Mapping[str, int] | None = None,
    users: Sequence[str] = (),
) -> Formatted:
    """Format all directories of the node. At most one of the options `standalone`, `initial_controllers` and
    `no_initial_controllers` may be given. Raises `CliError`.
    """
    from odradek.env.ports import DiskError
    from odradek.env.real import RealEnv
    from odradek.metadata_quorum.replica.storage_format import (
        StorageError,
        StorageFormat,
        bootstrap_features,
        format_storage,
        random_cluster_id,
        storage_info,
    )

    config = load_config(config_path)
    env = RealEnv()
    first_users = [scram_record(text, env.new_uuid()) for text in users]
    try:
        voter, voters = _who_votes(config, standalone, initial_controllers, no_initial_controllers)
        paths = _directories(config)
        directories = [env.open_dir(path, create=True) for path in paths]
        if cluster_id is None:
            known = [info.meta.cluster_id for info in map(storage_info, directories) if info.meta is not None]
            if not known and voter is None:
                raise StorageError(
                    "--cluster-id is missing: give the same cluster id to all nodes of a cluster "
                    "(`odradek storage random-uuid` makes a new one)"
                )
            cluster_id = known[0] if known else random_cluster_id(env.new_uuid())
        formatted = format_storage(
            directories,
            directories[paths.index(config.metadata_log_dir)],
            StorageFormat(
                cluster_id=cluster_id,
                node_id=config.node_id,
                directory_ids=[env.new_uuid() for _ in directories],
                voter=voter,
                voters=voters,
                timestamp_ms=time.time_ns() // 1_000_000,
                features=bootstrap_features(features or {}),
                users=first_users,
            ),
            ignore_formatted=ignore_formatted,
        )
    except (StorageError, DiskError) as error:
        raise CliError(str(error)) from error
    _warn_of_modes(paths)
    return Formatted(cluster_id, config.node_id, formatted)


def _warn_of_modes(paths: list[str]) -> None:
    """Print a warning for directories that every user of the machine can read. Only directories that existed before
    this command can have such a mode.
    """
    from odradek.node.secret_files import chmod_remedy, open_to_everybody

    exposed = open_to_everybody(paths)
    if exposed:
        names = ", ".join(exposed)
        complain(
            f"every user of this machine may enter {names}, which will hold records and keys: run "
            f"{chmod_remedy(exposed)}"
        )


def _is_alone(config: NodeConfig) -> bool:
    """True if the properties file names no controller other than this node.

    Such a node becomes the only voter, even without an option.
    """
    if config.voter is None:
        return False
    if config.static_voters:
        return len(config.static_voters) == 1
    host, port = config.voter.host, config.voter.port
    return all(
        server[1] == port and server[0] in (host, "localhost", "127.0.0.1", "::1")
        for server in config.bootstrap_servers
    )


def _directories(config: NodeConfig) -> list[str]:
    """List the log directories, and the metadata directory if it is a separate one."""
    paths = list(config.log_dirs)
    return paths if config.metadata_log_dir in paths else [*paths, config.metadata_log_dir]
