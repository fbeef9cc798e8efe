"""Reads decoders of Llama's shape from their files, without `transformers`.

Importing that, and building a model to take its weights out, is most of the time that a worker
takes to start, and needs room for all weights as they are written, however small they become. So
what is written plainly in the files is read here, a layer at a time; a setting or a tensor that
is not known to leave the computation as it is has the model loaded by `transformers` instead
(`hf`), which says no to what it cannot use. Both ways lead to the same bits.
"""

from common.model.checkpoint.reader import Unknown, read
from common.model.checkpoint.settings import Config

__all__ = ["Config", "Unknown", "read"]
