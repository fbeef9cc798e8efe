"""What Triton's interpreter does otherwise than a device, set right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels be interpreted as a device computes them, in less than half of the time."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    _compute_as_devices_do(interpreter, monkeypatch)
    _take_over_once(interpreter, monkeypatch)
    _know_types(interpreter, monkeypatch)


def _compute_as_devices_do(interpreter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is summed in one order: BLAS has another for some rows of a tile, with some
    processors. bfloat16, which the interpreter keeps as integers, is multiplied by matrices as the
    numbers that they stand for, and rounded to the nearest; nothing else is computed in it. Nor
    are sums of integers looked at for more than they can hold, each time once more in 64 bits.
    """
    builder, language = interpreter.InterpreterBuilder, interpreter.tl
    cast, convert = builder.cast_impl, builder.create_fp_to_fp

    def numbers(handle: Any) -> np.ndarray:
        if handle.dtype.scalar == language.bfloat16:
            return _widened(handle.data)
        data: np.ndarray = handle.data
        return data

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

    only = interpreter.interpreter_builder
    monkeypatch.setattr(only, "options", replace(only.options, sanitize_overflow=False))
    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr(builder, "cast_impl", casting(cast))
    monkeypatch.setattr(builder, "create_fp_to_fp", casting(convert))


def _take_over_once(interpreter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The language's core is not taken over again whenever a kernel calls a function."""
    core = interpreter.tl.core

    def call(function: Any, *args: object, **named: object) -> object:
        if core.is_builtin(core.arange):
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **named)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)


def _know_types(interpreter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is to say of a type is found out once, not for every value; and a number meets a
    block without being written down for each of its places."""
    core, semantic = interpreter.tl.core, type(interpreter.interpreter_semantic)
    look_up, make_block = interpreter._get_np_dtype, core.block_type.__init__
    meet = semantic.broadcast_impl_value
    types, blocks = dict[str, Any](), dict[Any, dict[str, Any]]()
    one, no_sides = core.constexpr(1), core.tuple([])

    def numpy_type(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in types:
            types[name] = look_up(kind)
        return types[name]

    def set_block(self: Any, element: Any, shape: Any) -> None:
        sides = tuple(core._unwrap_shape(shape))
        key = id(element), sides  # it is kept below
        if key not in blocks:
            make_block(self, element, list(sides))
            self.sides, self.numbers = sides, core.constexpr(self.numel)
            self.known_sides = core.tuple([core.constexpr(side) for side in sides])
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def set_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        block = kind.is_block()
        self.numel = kind.numbers if block else one
        self.shape = kind.known_sides if block else no_sides

    def spread(number: Any, over: Any) -> Any:
        data = np.broadcast_to(number.handle.data, over.sides)
        handle = interpreter.TensorHandle(data, number.dtype)
        return core.tensor(handle, over.with_element_ty(number.dtype))

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        over, under = left.type, right.type
        if over.is_block() and under.is_block():
            return (left, right) if over.sides == under.sides else meet(self, left, right)
        if over.is_block():
            return left, spread(right, over)
        return (spread(left, under), right) if under.is_block() else (left, right)

    monkeypatch.setattr(interpreter, "_get_np_dtype", numpy_type)
    monkeypatch.setattr(core.block_type, "__init__", set_block)
    monkeypatch.setattr(core.tensor, "__init__", set_tensor)
    monkeypatch.setattr(semantic, "broadcast_impl_value", broadcast)


def _widened(bits: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(numbers: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, of two the even one. Numbers are finite."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
