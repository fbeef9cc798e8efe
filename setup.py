"""What is compiled at installation, where that works; all else is in pyproject.toml."""

import platform
from pathlib import Path

from setuptools import Extension, setup

_FLAGS = ["-g0", "-std=gnu11", "-ffp-contract=off"]
_NATIVE = "common/model/native"
_NGRAMS = "common/ngrams"


def _files(folder: str, ending: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob(f"*.{ending}"))


def _decoder(name: str, *flags: str) -> Extension:
    """The CPU's decoder for vectors of some width; without any, torch does the same, slowly."""
    return Extension(
        f"{_NATIVE.replace('/', '.')}._{name}",
        sources=_files(_NATIVE, "c"),
        depends=_files(_NATIVE, "h"),
        extra_compile_args=["-O3", "-pthread", *_FLAGS, *flags],
        extra_link_args=["-pthread"],
        libraries=["m"],
        optional=True,
    )


_VECTORS = {
    "avx512": [
        *(f"-mavx512{feature}" for feature in ("f", "bw", "dq", "vl", "vnni", "bf16")),
        "-mfma",
    ],
    "avx2": ["-mavx2", "-mfma"],
}
# Compilers for other processors do not know these options, and would say so four times.
if platform.machine().lower() not in ("x86_64", "amd64"):
    _VECTORS = {}

setup(
    ext_modules=[
        *(_decoder(vectors, *flags) for vectors, flags in _VECTORS.items()),
        *(_decoder(f"{vectors}_float32", *flags, "-DWIDE") for vectors, flags in _VECTORS.items()),
        # N-grams: where they cannot be compiled, Python does the same.
        Extension(
            f"{_NGRAMS.replace('/', '.')}._native",
            sources=[f"{_NGRAMS}/native.c"],
            depends=_files(_NGRAMS, "h"),
            extra_compile_args=["-O2", *_FLAGS],
            optional=True,
        ),
    ]
)
