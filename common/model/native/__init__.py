"""Models of Llama's shape in bfloat16 on CPU, a whole pass in one call of compiled code.

At a handful of rows a pass through torch costs what its hundreds of calls cost. `decoder.c` makes
one of it, reads the paged cache in place and gives every row the bits it has alone. It is built
where there is a C compiler at installation and used where the processor has AVX-512 with bfloat16;
elsewhere `common.model.fused` does the same through torch, with other bits.
"""

from common.model.native.library import Decoder, top
from common.model.native.model import NativeModel, can_run
from common.model.native.product import NativeProducts

__all__ = ["Decoder", "NativeModel", "NativeProducts", "can_run", "top"]
