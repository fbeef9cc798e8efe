"""What Triton's interpreter does otherwise than a device, set right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels be interpreted as a device computes them, and sooner.

    A product is summed in one order: BLAS has another for some rows of a tile, with some
    processors. bfloat16, which the interpreter keeps as integers, is multiplied by matrices as the
    numbers that they stand for, and rounded to the nearest; nothing else is computed in it. And the
    language's core is taken over once, not again whenever a kernel calls a function, which takes
    half of the time; nor is a table of types made whenever one is looked up.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    builder, language = interpreter.InterpreterBuilder, interpreter.tl
    cast, convert = builder.cast_impl, builder.create_fp_to_fp
    look_up, types = interpreter._get_np_dtype, dict[str, Any]()

    def numbers(handle: Any) -> np.ndarray:
        if handle.dtype.scalar == language.bfloat16:
            return _widened(handle.data)
        data: np.ndarray = handle.data
        return data

    def numpy_type(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in types:
            types[name] = look_up(kind)
        return types[name]

    def create_dot(self: object, a: Any, b: Any, acc: Any, *rest: object) -> Any:
        left, right = (numbers(each).astype(acc.data.dtype) for each in (a, b))
        sums = np.einsum("...ik,...kj->...ij", left, right) + acc.data
        return interpreter.TensorHandle(sums, acc.dtype.scalar)

    def casting(otherwise: Callable[..., Any]) -> Callable[..., Any]:
        def to(self: object, source: Any, kind: Any, *rest: object) -> Any:
            scalar = kind.scalar
            if scalar == language.bfloat16:
                return interpreter.TensorHandle(_narrowed(numbers(source)), scalar)
            if source.dtype.scalar == language.bfloat16:
                wide = numbers(source).astype(interpreter._get_np_dtype(kind))
                return interpreter.TensorHandle(wide, scalar)
            return otherwise(self, source, kind, *rest)

        return to

    def call(function: Any, *args: object, **named: object) -> object:
        if language.core.is_builtin(language.core.arange):
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **named)

    monkeypatch.setattr(interpreter, "_get_np_dtype", numpy_type)
    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr(builder, "cast_impl", casting(cast))
    monkeypatch.setattr(builder, "create_fp_to_fp", casting(convert))
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)


def _widened(bits: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(numbers: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, of two the even one. Numbers are finite."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
