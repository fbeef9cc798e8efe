"""N-grams: counts of what followed what, and what they say may come next.

`native.c` does in compiled code what `contexts`, `calibration` and `predictor` do in Python, to the
same candidates, in a seventh of the time. It is built where there is a C compiler at installation;
that it was changes nothing but speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.ngrams.predictor import Tables

if TYPE_CHECKING:
    from common.ngrams.calibration import Calibration
    from common.ngrams.contexts import Contexts
    from common.ngrams.predictor import Predictor
else:
    try:
        from common.ngrams._native import Calibration, Contexts, Predictor
    except ImportError:
        from common.ngrams.calibration import Calibration
        from common.ngrams.contexts import Contexts
        from common.ngrams.predictor import Predictor

__all__ = ["Calibration", "Contexts", "Predictor", "Tables"]
