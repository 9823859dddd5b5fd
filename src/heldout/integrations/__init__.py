"""Trainers that heldout hooks into, each in a module of its own, imported only when used.

A trainer's events go in: a step, a save, an end. Evals that are due come out, and a request to stop
is passed on. What an eval is, and where its point goes, belongs to `training/`. Evals and logs of
other packages are in `adapters/`.
"""
