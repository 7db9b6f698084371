"""The recipe that made the checkpoints under models/ (README.md says how to run it)."""
