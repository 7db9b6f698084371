"""The smoke run: the whole recipe at a toy size (smoke.sh)."""
