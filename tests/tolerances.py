"""How close numbers are that two kernels compute of the same values: stated once, for every test.

A sum is rounded otherwise in another order, and the order depends on the processor, on the number
of threads and on what else is in the batch. So whatever computes a number in two ways (a kernel and
plain torch, merged adapters and those beside their weights, a row alone and in a batch) is compared
with these tolerances, and never by its bits. They are ten times what processors have been seen to
differ by, and far below what another weight, mask or position changes.

What goes through the same kernel twice with the same values and shapes is compared by its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

FLOAT32 = 1e-4
"""Logits, log probabilities and actions: 1.4e-5 was seen between two processors."""
HALF = 0.02
"""Products in half precision, of numbers around 10: relative, and absolute ten times that."""
ENGINES = 1e-3
"""Log probabilities of another engine (vLLM), whose kernels share no line with torch's."""


def assert_close(found: Any, expected: Any, *, half: bool = False) -> None:
    """Compare tensors or arrays that two kernels computed.

    Args:
        found: One of them.
        expected: The other one, of the same shape.
        half: Whether one was computed in half precision.
    """
    relative, absolute = (HALF, 10 * HALF) if half else (FLOAT32, FLOAT32)
    found, expected = (np.asarray(_on_cpu(values)) for values in (found, expected))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute, equal_nan=False)


def _on_cpu(values: Any) -> Any:
    return values.detach().cpu().float() if hasattr(values, "detach") else values


def near(number: float, *, engines: bool = False) -> Any:
    """What a number equals that two kernels, or two `engines`, computed."""
    return pytest.approx(number, abs=ENGINES if engines else FLOAT32)
