"""How many of a service's places one tenant may take, so that some are left for the others."""

from __future__ import annotations

_MOST_PER_FREE = 7


def over_share(mine: int, taken: int, places: int) -> bool:
    """Whether a tenant that asks for one more place has its share already.

    It may have seven for each that is free (a dynamic threshold, as Choudhury and Hahne have it
    for shared buffers, 1998). So a tenant that is alone gets all but an eighth of many places,
    several get equal parts, and there is always room for one that comes later. Of fewer than
    eight places nothing is kept.

    Args:
        mine: Places the tenant has.
        taken: Places all tenants have, this one included.
        places: How many there are.
    """
    return mine >= _MOST_PER_FREE * (places - taken)
