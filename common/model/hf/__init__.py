"""Models as `transformers` builds them: any causal language model, and slow to import.

Decoders of Llama's shape are read without it where that can be (`common.model.checkpoint`), and
run by kernels of their own wherever they come from. All others run as the modules they are, with
our attention, products that compute every row by itself, and rotary embeddings from a table.
"""

from common.model.hf.model import HfModel, ends_of

__all__ = ["HfModel", "ends_of"]
