"""`python -m heldout`: the command line."""

from heldout.cli.main import main

main()
