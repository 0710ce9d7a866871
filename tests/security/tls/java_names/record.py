"""Records how Java and Kafka print and map names: `python -m tests.security.tls.java_names.record` writes the files."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from testkit.kafka_server import ensure_jars
from tests.security.tls.java_names.subjects import RULES, SUBJECTS

NAMES_PATH = Path(__file__).with_name("names.json")
RULES_PATH = Path(__file__).with_name("rules.json")
_SOURCE = """
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class Record {
    static String hex(String text) {
        return HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
    static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ", -1);
            String found;
            try {
                found = words[0].equals("name")
                    ? hex(new X500Principal(HexFormat.of().parseHex(words[1])).getName())
                    : hex(SslPrincipalMapper.fromRules(text(words[1])).getName(text(words[2])));
            } catch (Throwable error) {
                found = "!";
            }
            System.out.println(found);
        }
    }
}
"""


def _ask(lines: list[str]) -> list[str | None]:
    java = shutil.which("java")
    assert java is not None, "no java was found, although ensure_jars requires it"
    with tempfile.TemporaryDirectory() as name:
        source, questions = Path(name) / "Record.java", Path(name) / "questions"
        source.write_text(_SOURCE)
        questions.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            [java, "-cp", f"{ensure_jars()}/*", source, questions], check=True, capture_output=True, text=True
        )
    return [None if each == "!" else bytes.fromhex(each).decode() for each in done.stdout.split("\n")[:-1]]


def asked_names() -> dict[str, dict[str, str | None]]:
    """Return the DER of each subject, and the name that Java prints for it."""
    found = _ask([f"name {each.public_bytes().hex()}" for each in SUBJECTS.values()])
    return {
        key: {"der": name.public_bytes().hex(), "name": text}
        for (key, name), text in zip(SUBJECTS.items(), found, strict=True)
    }


def asked_rules() -> list[list[str | None]]:
    """Return mapping rules, names, and the principal that Kafka's rules give."""
    found = _ask([f"rule {rules.encode().hex()} {name.encode().hex()}" for rules, name in RULES])
    return [[*each, text] for each, text in zip(RULES, found, strict=True)]


if __name__ == "__main__":
    NAMES_PATH.write_text(json.dumps(asked_names(), indent=1) + "\n")
    RULES_PATH.write_text(json.dumps(asked_rules(), indent=1) + "\n")
