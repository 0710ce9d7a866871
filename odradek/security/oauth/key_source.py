"""The public keys of a token issuer (JWKS, RFC 7517): fetched in a worker, and kept while the issuer is unreachable.
PORTED.

One task fetches the keys at the start, then every `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and earlier if
a token names an unknown key. Clients with such tokens cause at most one fetch in each longest backoff
(`retry_backoff_ms_max`). If a fetch fails, the old keys stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, KeySet, OKPKey, RSAKey

from odradek.env.ports import DocumentMissing, Env, Log, Workers
from odradek.env.token_ports import FetchDocument
from odradek.security.oauth.oauth_settings import KeySourceSettings

__all__ = ["KeySource", "KeysUnusable", "decode_keys"]

KEYS_MAX = 1_000
_IMPORTS: Mapping[str, Callable[[Any], Key]] = {
    "RSA": RSAKey.import_key,
    "EC": ECKey.import_key,
    "OKP": OKPKey.import_key,
}


class KeysUnusable(Exception):
    """Raised if a document has no keys for signatures. The text has the reason in one line."""


def decode_keys(data: bytes) -> KeySet:
    """Decode the public keys for signatures in a document; other keys are skipped. Raises `KeysUnusable`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeysUnusable("the document of the issuer's keys is not JSON") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeysUnusable("the issuer's document has no list of keys")
    found = []
    for each in listed[:KEYS_MAX]:
        kind = each.get("kty") if isinstance(each, dict) and each.get("use", "sig") == "sig" else None
        if not isinstance(kind, str) or kind not in _IMPORTS:
            continue
        try:
            found.append(_IMPORTS[kind](each))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not found:
        raise KeysUnusable("the issuer's document has no key for signatures")
    return KeySet(found)


class KeySource:
    """Fetches the keys of an issuer, and keeps the keys of the last successful fetch."""

    def __init__(
        self, env: Env, log: Log, settings: KeySourceSettings, fetch: FetchDocument, workers: Workers
    ) -> None:
        """`workers` must serve `fetch` alone, because it may block for long."""
        self._env = env
        self._fetch = fetch
        self._workers = workers
        self._log = log
        self._settings = settings
        self._wanted = env.event()
        self.keys: KeySet | None = None
        """The issuer's keys; None until they were fetched for the first time."""

    def want(self) -> None:
        """Request an early fetch, because a token names an unknown key. The backoff still applies."""
        self._wanted.set()

    async def run(self) -> None:
        """Fetch the keys at the start and again after each interval. This never returns."""
        failures = 0
        while True:
            self._wanted = self._env.event()
            try:
                data = await self._workers.run(self._fetch, self._settings.address)
                self.keys = decode_keys(data)
                failures = 0
            except (DocumentMissing, KeysUnusable) as error:
                failures += 1
                self._log.warning("sasl.keys_not_fetched", url=self._settings.address.url, reason=str(error))
            await self._rest(failures)

    async def _rest(self, failures: int) -> None:
        """Wait for the backoff. If the last fetch succeeded, also wait for the next refresh or for a token with an
        unknown key.
        """
        settings, clock = self._settings, self._env.clock
        backoff_ms = settings.retry_backoff_ms_max
        if failures:
            backoff_ms = min(settings.retry_backoff_ms << min(failures - 1, 20), backoff_ms)
        await clock.sleep_until(clock.monotonic() + max(backoff_ms, 1) / 1000)
        if failures:
            return
        with clock.timeout_at(clock.monotonic() + settings.refresh_ms / 1000):
            await self._wanted.wait()
