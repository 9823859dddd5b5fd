"""The error of a mean whose values come in clusters, of any sizes.

The variance between clusters is estimated by the jackknife: each cluster's distance from the mean
counts as if the mean had been taken without it (CR3; R. M. Bell and D. F. McCaffrey 2002, Survey
Methodology 28; J. G. MacKinnon and H. White 1985, Journal of Econometrics 29). A cluster that holds
most of the values draws the mean to itself, and the plain sum of squares would take that for
agreement: with one of 200 among nine of 5 its 95% interval covers 42%. For clusters of one size it
is the usual estimate, G / (G - 1) times the sum of squares.

Degrees of freedom are those at which Student's t matches the first two moments of that estimate for
independent values (Satterthwaite 1946, Biometrics 2; Bell and McCaffrey 2002): G - 1 for clusters
of one size, and far fewer where few clusters decide.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def leave_out_weights(sizes: Floats) -> Floats:
    """What each cluster's sum of distances is multiplied by; its square sum is n² the variance."""
    groups, n = len(sizes), float(sizes.sum())
    return np.asarray(np.sqrt((groups - 1) / groups) * n / (n - sizes))


def degrees_of_sizes(sizes: Floats) -> float:
    """Of clusters given one by one."""
    return degrees_of_freedom(zip(*np.unique(sizes, return_counts=True), strict=True))


def degrees_of_freedom(sizes: Iterable[tuple[int, int]]) -> float:
    """Of clusters given as (size, how many of it); two clusters at least."""
    table = np.array(list(sizes), dtype=np.float64)
    size, count = table[:, 0], table[:, 1]
    if len(table) == 1:
        return float(count[0]) - 1
    n = float(np.dot(size, count))
    weighted = size * n / (n - size)
    squares = float(np.dot(weighted**2, count))
    cross = (squares**2 - float(np.dot(weighted**4, count))) / n**2
    return float(np.dot(weighted, count)) ** 2 / (squares + cross)
