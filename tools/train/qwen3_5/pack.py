"""Shrink target.pt to its 4-bit codes for the transfer: pack.py IN.pt OUT.pt"""
import sys, torch
from qmodel import *
ck = torch.load(sys.argv[1], map_location="cpu", weights_only=False); dev = "cuda" if torch.cuda.is_available() else "cpu"; Z = {}
for n, w in ck["master"].items():
    if quantisable(n, w):
        q, s, b = quant(w.to(dev)); q = q.to(torch.uint8).reshape(w.shape).cpu()
        Z[n] = dict(q=q[:, 0::2] | (q[:, 1::2] << 4), s=s.reshape(w.shape[0], -1).bfloat16().cpu(), b=b.reshape(w.shape[0], -1).bfloat16().cpu())
    else: Z[n] = w.float() if n.endswith("A_log") else w.bfloat16()
torch.save(dict(packed=Z, cfg=ck.get("cfg"), info=ck.get("info")), sys.argv[2])
