"""Adapters to other people's packages, each in a file of its own, imported only when used."""
