"""MLX's affine 4-bit format in plain PyTorch: rounding for training, packing for export, and the way back.

A matrix `[rows, columns]` is cut along its columns into groups of 64. Each group stores 64 codes 0..15, a scale and a bias, both
bfloat16; a weight is `scale * code + bias`. Codes are packed eight to a 32-bit word, the first in the lowest bits.
"""

import torch

GROUP_SIZE = 64
BITS = 4
CODES_PER_WORD = 32 // BITS
QUANTISATION = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}


def quantise(weight):
    """Rounds a tensor whose number of elements is a multiple of 64, group by group.

    Returns `(codes, scales, biases)`: codes `[groups, 64]` as floats 0..15; scales and biases `[groups, 1]`, float32 that is
    exact in bfloat16. As MLX does, the scale is adjusted so that the group's extreme of larger magnitude (and zero, if it lies in
    the group's range) has an exact code; codes are chosen after scale and bias have been rounded to bfloat16.
    """
    groups = weight.float().reshape(-1, GROUP_SIZE)
    highest, lowest = groups.amax(1, keepdim=True), groups.amin(1, keepdim=True)
    low_edge = lowest.abs() > highest.abs()
    scale = ((highest - lowest) / (2**BITS - 1)).clamp_min(1e-7)
    scale = torch.where(low_edge, scale, -scale)
    edge = torch.where(low_edge, lowest, highest)
    steps = torch.round(edge / scale)
    has_zero = steps != 0
    scale = torch.where(has_zero, edge / torch.where(has_zero, steps, torch.ones_like(steps)), scale)
    bias = torch.where(has_zero, edge, torch.zeros_like(edge))
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    codes = torch.round((groups - bias) / scale).clamp(0, 2**BITS - 1)
    return codes, scale, bias


def fake_quantise(weight):
    """The tensor as the exported file will hold it: rounded to 4 bits and expanded again, float32, same shape."""
    codes, scale, bias = quantise(weight)
    return (codes * scale + bias).reshape(weight.shape)


def pack(weight):
    """A matrix `[rows, columns]`, columns a multiple of 64, in the file's form.

    Returns `(words, scales, biases)`: uint32 `[rows, columns / 8]`, bfloat16 `[rows, columns / 64]` twice.
    """
    rows, columns = weight.shape
    if columns % GROUP_SIZE:
        raise ValueError(f"a matrix of {columns} columns cannot be cut into groups of {GROUP_SIZE}: choose a multiple")
    codes, scale, bias = quantise(weight)
    codes = codes.reshape(rows, columns // CODES_PER_WORD, CODES_PER_WORD).to(torch.int64)
    words = sum(codes[..., i] << (BITS * i) for i in range(CODES_PER_WORD))
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).view(torch.uint32)
    shape = (rows, columns // GROUP_SIZE)
    return words.contiguous(), scale.reshape(shape).bfloat16(), bias.reshape(shape).bfloat16()


def unpack(words, scales, biases):
    """The inverse of `pack`: the float32 matrix `[rows, columns]` that the words stand for."""
    bits = words.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    codes = torch.stack([(bits >> (BITS * i)) & (2**BITS - 1) for i in range(CODES_PER_WORD)], -1)
    codes = codes.reshape(words.shape[0], -1, GROUP_SIZE).float()
    return (codes * scales.float()[..., None] + biases.float()[..., None]).reshape(words.shape[0], -1)
