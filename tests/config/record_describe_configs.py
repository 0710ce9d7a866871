"""Record what Apache Kafka answers to DescribeConfigs, as data for `test_effective_config.py`.

    python -m tests.config.record_describe_configs HOST:PORT NODE_ID PROPERTIES >tests/config/data/described.json

PROPERTIES is the broker's own file. The broker must have the topics `plain` (no overrides) and `tuned` (see
`TUNED`); both are created if they are missing.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from odradek.metadata_quorum.config.java_properties import parse_properties
from odradek.wire.codec import decode, encode
from odradek.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

TUNED = {"retention.ms": " 1000 ", "segment.bytes": "2000000", "cleanup.policy": "compact, delete"}
TOPIC, BROKER = 2, 4


def ask(address: tuple[str, int], request: Any, response: type, version: int) -> Any:
    """Send one request on a connection of its own. Both APIs have flexible headers at these versions."""
    body = encode(request, version)
    header = request.API_KEY.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff\x00"
    frame = header + body
    with socket.create_connection(address) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        file = connection.makefile("rb")
        answer = file.read(int.from_bytes(file.read(4), "big"))
    return decode(response, version, answer, 5)


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    address = (host, int(port))
    configs = [CreatableTopicConfig(name, value) for name, value in TUNED.items()]
    topics = [CreatableTopic("plain", 1, 1, [], []), CreatableTopic("tuned", 1, 1, [], configs)]
    ask(address, CreateTopicsRequest(topics, 10_000, False), CreateTopicsResponse, 7)
    resources = [
        DescribeConfigsResource(TOPIC, "plain", None),
        DescribeConfigsResource(TOPIC, "tuned", None),
        DescribeConfigsResource(BROKER, sys.argv[2], None),
    ]
    answer = ask(address, DescribeConfigsRequest(resources, True, False), DescribeConfigsResponse, 4)
    with open(sys.argv[3]) as file:
        properties = parse_properties(file.read())
    described = {
        result.resource_name if result.resource_type == TOPIC else "broker": {
            config.name: [
                config.value,
                config.config_source,
                config.is_sensitive,
                config.read_only,
                config.config_type,
                [[synonym.name, synonym.value, synonym.source] for synonym in config.synonyms],
            ]
            for config in sorted(result.configs, key=lambda config: config.name)
        }
        for result in answer.results
    }
    lines = [
        f"  {json.dumps(resource)}: {{\n"
        + ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        + "\n  }"
        for resource, entries in described.items()
    ]
    print("{\n" + f'  "properties": {json.dumps(properties)},\n' + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
