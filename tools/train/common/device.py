"""Where a run computes, and with what type."""

import sys

import torch


def add_device_arguments(parser):
    """--device."""
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"],
                        help="cuda: bfloat16, compiled (default); cpu: float32, for toy sizes")


def open_device(name, seed):
    """Checks that the device is there and seeds it; the type to compute with."""
    if name == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device was found: run on a machine with one, or pass --device cpu (toy sizes only)")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    return torch.bfloat16 if name == "cuda" else torch.float32


def wait_for(device):
    """Waits until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()
