"""The faces of a deployed cluster: consoles over TLS, pages of metrics with logins, and a Prometheus that reads them."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from tests.deploy.hosts import OUTSIDE
from tests.deploy.life import Life, refused

METRICS_PORT, CONSOLE_PORT, PROMETHEUS_PORT = 9094, 9098, 9990
USER = "scraper"
_ANSWER_SECONDS = 30
_UP_SECONDS_MAX = 90
_LOOK_SECONDS = 0.3
_BOARDS = ("client", "cluster", "disks", "group", "topic")


def faces(life: Life) -> None:
    """Open consoles to the network, give the metrics pages logins, and let Prometheus read them by the written files."""
    play, variables = life.playbooks, life.playbooks.inventory["vars"]
    secrets = life.hosts.work / "secrets"
    variables["odradek_secrets"] = str(secrets)
    variables["odradek_console"] = "network"
    if "odradek_security" not in variables:
        with life.step("a console without TLS and logins is refused"):
            outcome = play.run("reconfigure", fails=True)
            refused(outcome, "a console would show the cluster to other machines without logins")
        variables["odradek_security"] = "beside"
    variables["odradek_metrics_access"] = "login"
    with life.step("consoles with TLS and logins") as step:
        lacked = [name for name in life.told if not _has_package(life, name)]
        shown = play.run("reconfigure", "--check").output
        assert ("the packages of the console would be added" in shown) is bool(lacked), shown[-3000:]
        assert [name for name in life.told if not _has_package(life, name)] == lacked
        play.run("reconfigure")
        assert play.run("reconfigure").changed == 0
        assert all(_has_package(life, name) for name in life.told)
        step.note = f"the package was added on {len(lacked)} hosts"
    with life.step("users log in to the consoles"):
        variables["odradek_users"] = [*variables.get("odradek_users", []), {"name": USER}]
        rule = {"user": USER, "operation": "describe", "cluster": True}
        variables["odradek_acls"] = [*variables.get("odradek_acls", []), rule]
        play.run("access")
        password = (secrets / f"{USER}.password").read_text().strip()
        for name in life.told:
            _look_into(life.hosts[name].address, name, secrets / "authority.pem", password)
    with life.step("a certificate for browsers, and keys of clients"):
        if variables["odradek_security"] == "beside":
            # Here the first listener in the file would be one without logins.
            variables["odradek_security"] = "within"
            life.secured = True
        variables["odradek_console_certificate"] = str(life.hosts.work / "console.pem")
        missing = play.run("reconfigure", fails=True)
        refused(missing, "odradek_console_certificate is", "and there is no such file")
        shown = _make_certificate(life, life.hosts.work / "console.pem")
        variables["odradek_console_client"] = {"schema.registry.url": "http://127.0.0.1:1"}
        play.run("reconfigure")
        assert play.run("reconfigure").changed == 0
        for name in life.told:
            _look_into(life.hosts[name].address, name, shown, password)
            mode = life.hosts.ssh(
                name, "stat -c %a:%U /etc/odradek/console.properties /etc/odradek/tls/console.pem"
            )
            assert (mode or "").split() == ["600:odradek", "600:odradek"]
    with life.step("targets, rules and dashboards, read by Prometheus") as step:
        out = life.hosts.work / "prometheus"
        variables["odradek_monitoring_directory"] = str(out)
        variables["odradek_monitoring_user"] = USER
        assert play.run("monitoring", "--check", "--diff").changed == 1
        assert not out.exists()
        assert play.run("monitoring").changed == 1
        assert play.run("monitoring", "--diff").changed == 0
        targets = [each["targets"] for each in json.loads((out / "targets.json").read_text())]
        assert targets == [[each] for each in _pages(life)]
        assert "alert: OdradekGroupLags" in (out / "odradek-rules.yml").read_text()
        boards = sorted(path.name for path in (out / "dashboards").iterdir())
        assert boards == [f"odradek-{name}.json" for name in _BOARDS]
        step.note = _scraped(life, out)


def _has_package(life: Life, name: str) -> bool:
    """True if the release that runs on a host has the package of the console."""
    asked = "ls -d /opt/odradek/current/lib/python3*/site-packages/h11 2>/dev/null || true"
    return bool(life.hosts.ssh(name, asked))


def _make_certificate(life: Life, path: Path) -> Path:
    """Make a key and a certificate of its own for all consoles, in one file. Return the path of the certificate."""
    key, certificate = path.with_suffix(".key"), path.with_suffix(".crt")
    names = ",".join(f"IP:{life.hosts[name].address}" for name in life.told)
    words = [
        "openssl",
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "rsa:2048",
        "-days",
        "2",
        "-subj",
        "/CN=consoles",
    ]
    words += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    path.write_text(key.read_text() + certificate.read_text())
    return certificate


def _pages(life: Life) -> list[str]:
    """Return the addresses of all metrics pages. A host with several nodes has their ports ten apart."""
    return [
        f"{life.hosts[name].address}:{METRICS_PORT + 10 * index}"
        for name, entry in life.told.items()
        for index in range(len(entry.get("odradek_nodes") or [1]))
    ]


def _look_into(address: str, name: str, authority: Path, password: str) -> None:
    """Log in to a console over TLS by its host's name and address, and read the page of the cluster."""
    context = ssl.create_default_context(cafile=str(authority))

    def ask(
        method: str, target: str, host: str, cookie: str = "", body: str | None = None
    ) -> tuple[int, str, Any]:
        connection = HTTPSConnection(address, CONSOLE_PORT, timeout=_ANSWER_SECONDS, context=context)
        with closing(connection):
            headers = {"Host": host, "Cookie": cookie, "Content-Type": "application/json"}
            if method == "POST":
                headers["Origin"] = f"https://{host}"
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("set-cookie") or "", json.loads(answer.read())

    here = f"{address}:{CONSOLE_PORT}"
    assert ask("GET", "/api/session", name)[0] == 200
    assert ask("GET", "/api/session", "evil.example")[0] == 421
    assert ask("GET", "/api/overview", here)[0] == 401
    wrong = json.dumps({"user": USER, "password": "no"})
    assert ask("POST", "/api/login", here, body=wrong)[0] == 401
    status, cookie, said = ask(
        "POST", "/api/login", here, body=json.dumps({"user": USER, "password": password})
    )
    assert status == 200, said
    status, _, overview = ask("GET", "/api/overview", here, cookie.partition(";")[0])
    assert status == 200, overview


def _scraped(life: Life, out: Path) -> str:
    """Let a Prometheus scrape by the written files until all targets are up. Return what was seen."""
    program = shutil.which("prometheus")
    if program is None:
        return "no Prometheus is installed, so nobody scraped"
    config = life.hosts.work / "prometheus.yml"
    # Relative paths are those of the directory of this file.
    scrape = (out / "scrape.yml").read_text()
    for name in ("targets.json", "authority.pem", "scraper.password"):
        scrape = scrape.replace(name, str(out / name))
    rules = out / "odradek-rules.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules}]\n{scrape}"
    )
    with _prometheus(program, config, life.hosts.work / "prometheus-data") as log:
        deadline = time.monotonic() + _UP_SECONDS_MAX
        wanted, found = dict.fromkeys(_pages(life), "up"), {}
        while found != wanted:
            assert time.monotonic() < deadline, f"{found}: {log.read_text()[-2000:]}"
            time.sleep(_LOOK_SECONDS)
            active = _asked("targets").get("activeTargets", [])
            found = {each["labels"]["instance"]: each["health"] for each in active}
        rules_read = [rule for group in _asked("rules")["groups"] for rule in group["rules"]]
        assert rules_read
    return f"{len(found)} targets up, {len(rules_read)} rules"


def _asked(what: str) -> dict[str, Any]:
    """Return what Prometheus answers; empty as long as it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{OUTSIDE}:{PROMETHEUS_PORT}/api/v1/{what}") as answer:
            found: dict[str, Any] = json.load(answer)["data"]
            return found
    except OSError:
        return {}


@contextmanager
def _prometheus(program: str, config: Path, data: Path) -> Iterator[Path]:
    """Run a Prometheus, and yield the path of its log."""
    log = data.with_suffix(".log")
    words = [program, f"--config.file={config}", f"--storage.tsdb.path={data}"]
    words.append(f"--web.listen-address={OUTSIDE}:{PROMETHEUS_PORT}")
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            yield log
        finally:
            process.terminate()
