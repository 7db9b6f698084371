"""What both recipes share: rounding, optimiser, token streams, export."""
