"""For the tests of your own environments: check one against the whole contract.

    from heldout.testing import check_environment

    def test_my_environment():
        check_environment(MyEnvironment, turns=["hello", Message("assistant", "", calls)])

What is checked is what `heldout.environment` says, and what the turn loop and the stored results
take for granted.
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
