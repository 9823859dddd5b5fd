"""Launching the kernels of Triton, and compiling all those of a step before its first run.

Triton compiles a kernel when it is first launched, one after the other, which takes seconds. Which
kernels a model needs, and for what types, is not known beforehand. So a step is run once with its
launches only noted, and what was noted is compiled at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A kernel, its arguments and its constants."""

_noted: ContextVar[dict[Any, Launch] | None] = ContextVar("noted", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run a kernel of Triton, or note it inside `noted_launches`."""
    noted = _noted.get()
    if noted is None:
        kernel[grid](*args, **constants)
    else:
        # One of each that Triton compiles by itself: all layers have the same.
        kinds = tuple(map(_kind_of, args))
        noted.setdefault((kernel, kinds, *constants.items()), (kernel, args, constants))


def _kind_of(argument: Any) -> Any:
    """Return what of an argument Triton compiles into a kernel."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument >= 1 << 31
    return type(argument)


@contextmanager
def noted_launches() -> Iterator[dict[Any, Launch]]:
    """Note launches instead of running them: what they would have computed has no values."""
    noted: dict[Any, Launch] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def compile_launches(launches: dict[Any, Launch], device: Any) -> None:
    """Compile and load what has been noted, at the same time.

    Compilers run outside of Python's lock, so that a dozen kernels take as long as the slowest.
    """
    by_kernel: dict[Any, list[Launch]] = {}
    for noted in launches.values():
        by_kernel.setdefault(noted[0], []).append(noted)

    def compile_those(those: Sequence[Launch]) -> None:
        with torch.cuda.device(device):  # a thread begins with the first GPU
            for kernel, args, constants in those:
                # Reading `run` loads the kernel, and compiles what launches it.
                _ = kernel.warmup(*args, grid=(1,), **constants).run

    with ThreadPoolExecutor(min(len(by_kernel) or 1, os.cpu_count() or 1)) as threads:
        # Kernels have caches of their own: variants of one are left to one thread.
        list(threads.map(compile_those, by_kernel.values()))
