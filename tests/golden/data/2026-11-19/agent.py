"""A policy of CartPole, and what it counts as a success."""

import numpy as np


def policy(observations):
    return (observations[:, 2] > 0).astype(np.int64)


def stood(info, terminated, truncated, ret, steps):
    return truncated
