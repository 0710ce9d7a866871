"""Record the answers of an Apache Kafka, which is started for it, or write the page of differences.

python -m tests.conformance.sasl record
python -m tests.conformance.sasl document
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from testkit.kafka_server import HEAP, run_tool, start_kafka
from testkit.processes import free_ports
from tests.conformance.sasl import document as page
from tests.conformance.sasl.recording import RECORDING, ask_all
from tests.conformance.sasl.servers import SCRAM_USERS, Place, settings
from tests.security.logins.issuer import Issuer


def main() -> int:
    """Start Kafka, make its users and record its answers, or write the page."""
    if sys.argv[1:] == ["document"]:
        page.PATH.write_text(page.render())
        return 0
    if sys.argv[1:] != ["record"]:
        print(__doc__, file=sys.stderr)
        return 2
    issuer = Issuer()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "jwks.json").write_bytes(issuer.document())
        ports = free_ports(4)
        keys = {
            **settings(directory, ports),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[3]}",
            "controller.quorum.voters": f"1@127.0.0.1:{ports[3]}",
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{directory}/jwks.json"
        server = start_kafka(directory / "node", port=ports[0], settings=keys, heap=(*HEAP, allowed))
        try:
            for user, password in SCRAM_USERS.items():
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                    run_tool(
                        "kafka.admin.ConfigCommand",
                        *("--bootstrap-server", server.bootstrap, "--alter", "--entity-type", "users"),
                        *("--entity-name", user, "--add-config", f"{mechanism}=[password={password}]"),
                    )
            plaintext, sasl, short = (f"127.0.0.1:{port}" for port in ports[:3])
            answers = ask_all(Place(plaintext, sasl, short, issuer))
        finally:
            server.stop()
    RECORDING.write(answers)
    print(f"{len(answers)} conversations in {RECORDING.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
