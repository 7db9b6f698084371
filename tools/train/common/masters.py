"""Float32 master weights beside the weights that training computes with."""

import os
import sys

import torch

from .quantise import fake_quantise


class MasterWeights:
    """Float32 masters in one flat buffer; the module's parameters become compute copies in another.

    `refresh(quantised=True)` writes the masters rounded to 4 bits into the compute copies, so that the forward pass sees exactly
    what an export would hold. Gradients are taken at the compute copies and applied to the masters: a straight-through estimator.

    `quantisable(name, parameter)` says which tensors are stored in 4 bits. Tensors whose name ends in `keep_float32` (a tuple of
    endings) are float32 in computation, too.
    """

    def __init__(self, module, device, dtype, quantisable, keep_float32=()):
        named = sorted(module.named_parameters(), key=lambda item: not quantisable(*item))
        self.quantised_names = {name for name, p in named if quantisable(name, p)}
        self.quantised_count = sum(p.numel() for name, p in named if name in self.quantised_names)
        total = sum(p.numel() for _, p in named)
        self.flat = torch.empty(total, device=device)
        self.compute = torch.empty(total, device=device, dtype=dtype)
        self.master, self.params, self.float32 = {}, {}, []
        offset = 0
        for name, p in named:
            end = offset + p.numel()
            self.flat[offset:end] = p.detach().reshape(-1).to(device).float()
            self.master[name] = self.flat[offset:end].view(p.shape)
            if keep_float32 and name.endswith(keep_float32):
                p.data = self.master[name].clone()
                self.float32.append(name)
            else:
                p.data = self.compute[offset:end].view(p.shape)
            self.params[name] = p
            offset = end
        self.round = torch.compile(fake_quantise) if torch.device(device).type == "cuda" else fake_quantise
        self.refresh(quantised=False)

    @torch.no_grad()
    def refresh(self, quantised):
        """Writes the compute copies anew, rounded to 4 bits where `quantised`."""
        n = self.quantised_count
        self.compute[:n].copy_(self.round(self.flat[:n]) if quantised else self.flat[:n])
        self.compute[n:].copy_(self.flat[n:])
        for name in self.float32:
            self.params[name].data.copy_(self.master[name])

    def state(self):
        """The masters as a state dict on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.master.items()}


def load_run(path):
    """What a training step saved: a dict with `master` (float32 weights by name) and, of targets and heads, `config`."""
    if not os.path.exists(path):
        sys.exit(f"{path}: no such file; the recipe's training steps make it (target.pt first, then the drafter or head)")
    return torch.load(path, map_location="cpu", weights_only=True)
