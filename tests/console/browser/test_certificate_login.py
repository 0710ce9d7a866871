"""A login by certificate in a real browser: it shows the certificate, a click logs in, and a logout lasts."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.application.console_here import console_for
from tests.console.application.test_certificates import OURS, started
from tests.console.browser.chromium import PATIENCE_MS, Complaints

pytestmark = pytest.mark.long


def test_a_browser_logs_in_by_its_certificate(browser: Browser, tmp_path: Path) -> None:
    """The user of the certificate sees his topic. After the logout, he is asked again."""
    place, server = started(tmp_path)
    try:
        with console_for(place.settings()) as console:
            url = f"https://127.0.0.1:{console.port}"
            person = str(tmp_path / "browser.pem")
            place.people.issue("dora").write(Path(person))
            context = browser.new_context(
                ignore_https_errors=True,
                client_certificates=[{"origin": url, "certPath": person, "keyPath": person}],
            )
            context.set_default_timeout(PATIENCE_MS)
            complaints = Complaints(context)
            page = context.new_page()
            page.goto(f"{url}/topics")
            page.get_by_text("Your certificate stands for dora.").wait_for()
            page.get_by_role("button", name="Log in by certificate").click()
            page.wait_for_url("**/topics")
            page.get_by_role("link", name=OURS).wait_for()
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_text("Your certificate stands for dora.")).to_be_visible()
            page.goto(f"{url}/topics")
            page.get_by_text("Your certificate stands for dora.").wait_for()
            context.close()
            assert complaints.found == []
    finally:
        server.stop()
