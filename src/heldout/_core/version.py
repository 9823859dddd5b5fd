"""The version of heldout: the build reads it here, and it is written nowhere else."""

__version__ = "0.1.0"
