"""Pieces that both architectures are built of."""

import torch
from torch import nn


class Scale(nn.Module):
    """A learned tensor called `weight`, as norms have one."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)


def linear(columns, rows, std):
    """A matrix without bias, `columns` inputs and `rows` outputs, drawn from a normal distribution."""
    layer = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


def rms_norm(x, weight, eps):
    """Root-mean-square norm over the last dimension, in float32; `weight` None means no learned scale."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


def rope_tables(frequencies, positions):
    """Cosines and sines of rotary embedding for positions 0..positions-1: two of shape `[positions, 1, 2 * len(frequencies)]`."""
    angles = torch.arange(positions, dtype=torch.float32, device=frequencies.device)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Rotary embedding of the first `cos.shape[-1]` dimensions of each head; x `[..., heads, head_dim]`."""
    dims = cos.shape[-1]
    turned = x[..., :dims].float()
    half = torch.cat([-turned[..., dims // 2 :], turned[..., : dims // 2]], -1)
    return torch.cat([(turned * cos + half * sin).to(x.dtype), x[..., dims:]], -1)
