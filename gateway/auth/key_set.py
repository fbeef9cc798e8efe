"""The public keys that sign callers' JWTs, from a file or an address: a JSON Web Key Set."""

from __future__ import annotations

import logging
import math
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from common.errors import ConfigError
from gateway.auth.refresh import Refresh

log = logging.getLogger(__name__)

Keys = Mapping[str | None, Any]

# A file is looked at this often; an address, where a key is asked for that is not known or the
# last attempt failed, no more often than that.
_FILE_AGE_S = 1.0
_LEAST_REFRESH_S = 10.0

# A fetch may take this long; callers whose key is known and still trusted go on with it sooner.
_FETCH_TIMEOUT_S = 5.0
_PATIENCE_S = 1.0
_MOST_BYTES = 1 << 20


class KeySet:
    """Keys by id, which are read again as they age: one that was revoked is gone then.

    Args:
        source: File or https address.
        parse: Reads what stands there; raises ConfigError where that is no key set.
        refresh_s: Age after which they are fetched again, in seconds.
        stale_s: Age after which nobody is believed any more, in seconds.
        clock: Seconds that only grow.

    Raises:
        ConfigError: The file cannot be read, or is none.
    """

    def __init__(
        self,
        source: str,
        parse: Callable[[bytes], Keys],
        *,
        refresh_s: float,
        stale_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._parse, self._clock = source, parse, clock
        self._remote = source.startswith("https://")
        self._refresh_s = refresh_s if self._remote else _FILE_AGE_S
        self._retry_s = _LEAST_REFRESH_S if self._remote else _FILE_AGE_S
        self._stale_s = stale_s
        self._refresh = Refresh(self._renew, clock)
        self._keys: Keys = {}
        self._good_at = -math.inf
        self._failed = False
        if not self._remote:
            self._take()

    async def key(self, kid: str | None) -> Any:
        """Returns the key of an id; None where there is none, or none that is still trusted."""
        known = kid in self._keys
        await self._refresh.ensure(
            self._refresh_s if known and not self._failed else self._retry_s,
            _PATIENCE_S if known and not self._stale else _FETCH_TIMEOUT_S,
        )
        return None if self._stale else self._keys.get(kid)

    @property
    def _stale(self) -> bool:
        return self._clock() - self._good_at >= self._stale_s

    def _renew(self) -> None:
        """Runs on a thread."""
        try:
            self._take()
        except ConfigError as error:  # the last known keys stay in force for a while
            self._failed = True
            age_s = self._clock() - self._good_at
            extra = {"reason": str(error), "age_s": None if math.isinf(age_s) else round(age_s)}
            log.warning("keys not fetched", extra=extra)

    def _take(self) -> None:
        began_at = self._clock()
        self._keys = self._parse(self._read())
        self._good_at, self._failed = began_at, False

    def _read(self) -> bytes:
        try:
            if not self._remote:
                return Path(self._source).read_bytes()
            opener = urllib.request.build_opener(_HttpsOnly)
            with opener.open(self._source, timeout=_FETCH_TIMEOUT_S) as answer:
                return bytes(answer.read(_MOST_BYTES))
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # the answer is in it
            raise ConfigError(f"auth.jwks: {self._source}: {error}") from error


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to where others could put in keys."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Raises HTTPError where the next address is not one of https."""
        if not newurl.startswith("https://"):
            raise HTTPError(req.full_url, code, "leads away from https", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
