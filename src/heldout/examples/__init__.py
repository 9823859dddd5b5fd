"""Evals that come with heldout, to try it with: `heldout run heldout.examples.capitals`."""
