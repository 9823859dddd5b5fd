"""Checks for your own tests.

check_environment   an environment does everything that the turn loop relies on
assert_neutral      evaluating does not change the training, in any bit

from heldout.testing import check_environment

def test_my_environment():
    check_environment(MyEnvironment, turns=["hello", Message("assistant", "", calls)])

Your environment, or two ways to run your training, go in; nothing comes out, or what is wrong with
them. heldout's own tests are not here.
"""

from __future__ import annotations

from heldout.testing.contract import ContractViolation, check_environment
from heldout.testing.neutral import Neutral, NotNeutral, NotRepeatable, assert_neutral

__all__ = [
    "ContractViolation",
    "Neutral",
    "NotNeutral",
    "NotRepeatable",
    "assert_neutral",
    "check_environment",
]
