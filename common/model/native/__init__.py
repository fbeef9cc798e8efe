"""Models of Llama's shape on CPU, bfloat16 or float32, a whole pass in one compiled call.

At a handful of rows a pass through torch costs what its hundreds of calls cost. `decoder.c` makes
one of it, reads the paged cache in place and gives every row the bits it has alone. It is built
where there is a C compiler at installation, for vectors of two widths: AVX-512 with bfloat16, and
AVX2, which nearly every x86 processor has. A processor that has tiles as well (AMX) computes
sixteen rows in the time of one; bfloat16 weights are kept in 12 bits there, without a loss. Each of
the three has bits of its own. The sources are compiled a second time for float32 (`wide.h`), in
which vectors do the products everywhere and no weights are rounded. Elsewhere `common.model.fused`
does the same through torch.
"""

from common.model.native.library import Decoder, draw, instructions, survivors, top
from common.model.native.model import NativeModel, can_run
from common.model.native.product import NativeProducts

__all__ = [
    "Decoder",
    "NativeModel",
    "NativeProducts",
    "can_run",
    "draw",
    "instructions",
    "survivors",
    "top",
]
