"""Fixtures of compiled code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.model.native import library


@pytest.fixture(scope="module", params=filter(library.opened, library.VECTORS))
def vectors(request: pytest.FixtureRequest) -> Iterator[str]:
    """With vectors of each width that the decoder was built for and that this processor has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "VECTORS", (request.param,))
        library.build.cache_clear()
        yield request.param
    library.build.cache_clear()
