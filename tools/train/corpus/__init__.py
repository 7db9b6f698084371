"""The training text: prepare.py collects it, synth.py makes the synthetic part (README.md)."""
