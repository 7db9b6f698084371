"""models/gemma-4-tiny-it-4bit and its assistant drafters."""
