"""Muon for the layers' matrices, Adam for everything else; both work on the float32 masters."""

import torch

MUON_MOMENTUM = (0.85, 0.95)  # from, to, over the first 300 steps
ADAM_BETAS = (0.9, 0.95)


def orthogonalise(gradient):
    """The nearest semi-orthogonal matrices of a stack `[n, rows, columns]`, by five quintic Newton-Schulz iterations in bfloat16."""
    x = gradient.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


class MuonAdam:
    """One optimiser over `weights` (MasterWeights).

    `muon_rate` is for the quantised matrices but the embedding, `embedding_rate` for tensors named `embed_tokens`, `other_rate` for
    norms, gates and scalars. Muon's weight decay is decoupled. `compiled` compiles the orthogonalisation.
    """

    def __init__(self, weights, muon_rate, embedding_rate, other_rate=0.003, decay=0.02, compiled=True):
        self.weights, self.muon_rate, self.decay = weights, muon_rate, decay
        self.by_shape, self.adam_names = {}, []
        for name, p in weights.params.items():
            if name in weights.quantised_names and "embed_tokens" not in name:
                self.by_shape.setdefault(tuple(p.shape), []).append(name)
            else:
                self.adam_names.append(name)
        self.rates = {n: embedding_rate if "embed_tokens" in n else other_rate for n in self.adam_names}
        self.orthogonalise = torch.compile(orthogonalise, dynamic=False) if compiled else orthogonalise
        self.reset()

    def reset(self):
        """Forgets all momenta and starts counting steps from zero."""
        self.steps = 0
        device = self.weights.flat.device
        self.momentum = {s: torch.zeros((len(names),) + s, device=device) for s, names in self.by_shape.items()}
        self.first = [torch.zeros_like(self.weights.master[n]) for n in self.adam_names]
        self.second = [torch.zeros_like(self.weights.master[n]) for n in self.adam_names]

    @torch.no_grad()
    def step(self, multiplier):
        """Applies the gradients at `multiplier` times the rates, then drops them. The compute copies want a refresh afterwards."""
        self.steps += 1
        self._muon(multiplier)
        self._adam(multiplier)
        for p in self.weights.params.values():
            p.grad = None

    def _muon(self, multiplier):
        low, high = MUON_MOMENTUM
        beta = min(high, low + (high - low) * self.steps / 300)
        rate = self.muon_rate * multiplier
        for shape, names in self.by_shape.items():
            gradient = torch.stack([self.weights.params[n].grad for n in names]).float()
            momentum = self.momentum[shape]
            momentum.lerp_(gradient, 1 - beta)
            update = self.orthogonalise(gradient.lerp(momentum, beta)).float()  # Nesterov
            update = update * (max(1, shape[0] / shape[1]) ** 0.5 * rate)
            matrices = [self.weights.master[n] for n in names]
            torch._foreach_mul_(matrices, 1 - rate * self.decay)
            torch._foreach_sub_(matrices, list(update.unbind(0)))

    def _adam(self, multiplier):
        beta1, beta2 = ADAM_BETAS
        gradients = [self.weights.params[n].grad.float() for n in self.adam_names]
        torch._foreach_lerp_(self.first, gradients, 1 - beta1)
        torch._foreach_mul_(self.second, beta2)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - beta2)
        scale1, scale2 = 1 - beta1**self.steps, 1 - beta2**self.steps
        spread = torch._foreach_div(self.second, scale2)
        torch._foreach_sqrt_(spread)
        torch._foreach_add_(spread, 1e-8)
        for name, first, s in zip(self.adam_names, self.first, spread):
            self.weights.master[name].addcdiv_(first, s, value=-self.rates[name] * multiplier / scale1)
