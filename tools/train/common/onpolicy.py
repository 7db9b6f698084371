"""Text that the target itself writes: what a drafter has to predict."""

import numpy as np
import torch


@torch.no_grad()
def continue_rows(prompts, length, device, step, temperature=0.0):
    """Continues prompts (int arrays) to rows of `length` tokens, all in step from position 0 with the prompts' tokens forced.

    `step(ids, position)` takes the tokens `[rows]` at a position and gives float32 logits `[rows, vocabulary]` of the next.
    Returns `(ids, prompt lengths)`.
    """
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = torch.from_numpy(prompt)
    ids = ids.to(device)
    prompt_lengths = torch.tensor([len(p) for p in prompts], device=device)
    for position in range(length - 1):
        logits = step(ids[:, position], position)
        if temperature == 0:
            chosen = logits.argmax(-1)
        else:
            chosen = torch.multinomial(torch.softmax(logits / temperature, -1), 1)[:, 0]
        ids[:, position + 1] = torch.where(position + 1 < prompt_lengths, ids[:, position + 1], chosen)
    return ids, prompt_lengths


def cut_at_end(ids, prompt_lengths, end_ids):
    """Each row up to and with the first end token of its continuation: a list of `(ids, prompt length)` on the CPU."""
    rows = []
    for row, prompt in zip(ids.cpu().numpy(), prompt_lengths.cpu().numpy()):
        ends = np.flatnonzero(np.isin(row[prompt:], end_ids))
        rows.append((row[: prompt + ends[0] + 1] if len(ends) else row, int(prompt)))
    return rows

