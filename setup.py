"""What is compiled at installation, where that works; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

_FLAGS = ["-g0", "-std=gnu11", "-ffp-contract=off"]
_NATIVE = "common/model/native"
_NGRAMS = "common/ngrams"


def _files(folder: str, ending: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob(f"*.{ending}"))


def _decoder(vectors: str, *flags: str) -> Extension:
    """The CPU's decoder for vectors of some width; without any, torch does the same, slowly."""
    return Extension(
        f"{_NATIVE.replace('/', '.')}._{vectors}",
        sources=_files(_NATIVE, "c"),
        depends=_files(_NATIVE, "h"),
        extra_compile_args=["-O3", "-pthread", *_FLAGS, *flags],
        extra_link_args=["-pthread"],
        libraries=["m"],
        optional=True,
    )


_AVX512 = [f"-mavx512{feature}" for feature in ("f", "bw", "dq", "vl", "vnni", "bf16")]

setup(
    ext_modules=[
        _decoder("avx512", *_AVX512, "-mfma"),
        _decoder("avx2", "-mavx2", "-mfma"),
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
