"""The command line: `heldout run | show | slice`. Each command's module loads when it is used."""
