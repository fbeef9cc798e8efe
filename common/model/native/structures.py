"""What the compiled decoder is given: structures, field by field as in `decoder.h`."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_float, c_int64, c_void_p


class Product(Structure):
    """A packed matrix."""

    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("stray_starts", c_void_p),
        ("strays", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("exponent", c_int64),
    )


class MixtureNorms(Structure):
    """Norms of experts that read rows by themselves."""

    _fields_ = (
        ("router", c_void_p),
        ("experts", c_void_p),
        ("experts_post", c_void_p),
        ("shared_post", c_void_p),
    )


class Experts(Structure):
    """Feed-forward parts of which a row takes some."""

    _fields_ = (
        ("router", Product),
        ("router_parts", c_int64),
        ("favours", c_void_p),
        ("gate_up", POINTER(Product)),
        ("down", POINTER(Product)),
        ("count", c_int64),
        ("chosen", c_int64),
        ("sigmoid", c_int64),
        ("summed", c_int64),
        ("scale", c_float),
        ("factors", c_void_p),
        ("norms", MixtureNorms),
    )


class Layer(Structure):
    """A decoder layer and its cache."""

    _fields_ = (
        ("qkv", Product),
        ("out", Product),
        ("gate_up", Product),
        ("down", Product),
        ("latent", Product),
        ("kv", Product),
        ("q_latent_norm", c_void_p),
        ("kv_latent_norm", c_void_p),
        ("q_latent", c_int64),
        ("kv_normed", c_int64),
        ("latent_epsilon", c_float),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("attention_post_norm", c_void_p),
        ("mlp_post_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("sinks", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("kv_heads", c_int64),
        ("size", c_int64),
        ("cache", c_void_p),
        ("shares", c_int64),
        ("experts", POINTER(Experts)),
        ("window", c_int64),
        ("per_layer_gate", Product),
        ("per_layer_out", Product),
        ("per_layer_post_norm", c_void_p),
        ("scale", c_float),
    )


class Gate(Structure):
    """How one half of what a first product makes gates the other."""

    _fields_ = (("curve", c_int64), ("steepness", c_float), ("limit", c_float))


class Model(Structure):
    """A whole model."""

    _fields_ = (
        ("hidden", c_int64),
        ("heads", c_int64),
        ("inner", c_int64),
        ("layers", c_int64),
        ("vocab", c_int64),
        ("positions", c_int64),
        ("slots", c_int64),
        ("gate", Gate),
        ("whole_norms", c_int64),
        ("norms_values", c_int64),
        ("epsilon", c_float),
        ("scale", c_float),
        ("softcap", c_float),
        ("head_softcap", c_float),
        ("growth", c_void_p),
        ("embeddings", c_void_p),
        ("read_as", c_void_p),
        ("norm", c_void_p),
        ("head", Product),
        ("layer", POINTER(Layer)),
        ("token_norm", c_void_p),
        ("given_norm", c_void_p),
        ("shown", Product),
        ("tapped", c_void_p),
        ("taps", c_int64),
        ("embedding_scale", c_float),
        ("feature_scale", c_float),
        ("per_layer_size", c_int64),
        ("per_layer_embeddings", c_void_p),
        ("per_layer_product", Product),
        ("per_layer_norm", c_void_p),
        ("per_layer_scale", c_float),
        ("per_layer_epsilon", c_float),
    )


class Request(Structure):
    """Rows to compute, and where to."""

    _fields_ = (
        ("words", c_void_p),
        ("logits", c_void_p),
        ("states", c_void_p),
        ("features", c_void_p),
        ("shown", c_void_p),
        ("given", c_void_p),
        ("left", c_void_p),
        ("drawings", c_char_p),
    )


class Adjusting(Structure):
    """What changes a row's logits; of `warp.h`."""

    _fields_ = (
        ("ids", c_void_p),
        ("biases", c_void_p),
        ("count", c_int64),
        ("seen", c_void_p),
        ("vocab", c_int64),
        ("path", c_void_p),
        ("steps", c_int64),
        ("penalty", c_float),
    )


class Ends(Structure):
    """When rows of a roll have gone far enough."""

    _fields_ = (
        ("ranges", c_int64),
        ("longest", c_int64),
        ("bounds", c_void_p),
        ("chances", c_void_p),
        ("least", c_void_p),
        ("tokens", c_void_p),
        ("right", c_void_p),
    )


class Limits(Structure):
    """When the texts are over of which rows of a roll are the ends."""

    _fields_ = (
        ("tokens", c_void_p),
        ("stops", c_void_p),
        ("starts", c_void_p),
    )


class Guessing(Structure):
    """How far a drafting head goes on."""

    _fields_ = (
        ("ids", c_void_p),
        ("factors", c_void_p),
        ("prices", c_void_p),
        ("row_prices", c_void_p),
        ("tokens", c_void_p),
        ("longest", c_int64),
        ("least", c_float),
    )


class Rolling(Structure):
    """How the tokens of a roll are chosen, and how long it goes on."""

    _fields_ = (
        ("drawings", c_char_p),
        ("ends", POINTER(Ends)),
        ("limits", POINTER(Limits)),
        ("guessing", POINTER(Guessing)),
        ("best", c_int64),
        ("news", c_int64),
    )


class Heads(Structure):
    """Medusa's heads."""

    _fields_ = (
        ("first", POINTER(Product)),
        ("blocks", POINTER(Product)),
        ("output", POINTER(Product)),
        ("vectors", c_void_p),
        ("factors", c_void_p),
        ("count", c_int64),
        ("later", c_int64),
        ("size", c_int64),
        ("tokens", c_int64),
        ("shared", c_int64),
    )
