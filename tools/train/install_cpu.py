#!/usr/bin/env python3
"""Makes a virtual environment in which the recipe runs on a CPU, from PyPI alone.

    python3 tools/train/install_cpu.py target/train-venv

On Linux x86-64, PyPI's PyTorch is the CUDA build; with all that it asks for, 2.9 GB are fetched. Here it is installed without its
CUDA libraries but the two small ones that it calls while loading (0.56 GB in all). cuda_stubs.py puts empty libraries in the place
of the others, so that it loads; what would call them is never reached on a CPU. Elsewhere, PyPI's PyTorch is a CPU build and is
installed as usual. A complete environment that is already there is kept. Needs a C compiler and binutils on Linux.
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
# What PyTorch imports on a CPU, and the CUDA libraries whose functions run when it is loaded.
TORCH_NEEDS = ["filelock", "typing-extensions>=4.13", "setuptools>=77", "sympy>=1.13.3", "networkx>=2.5.1", "jinja2", "fsspec"]
CUDA_NEEDS = ["nvidia-cuda-runtime==13.2.*", "nvidia-cuda-cupti==13.2.*"]


def stamp():
    """Changes when anything that decides what is installed changes."""
    parts = [open(os.path.join(HERE, name), "rb").read() for name in ("requirements.txt", "install_cpu.py", "cuda_stubs.py")]
    return hashlib.sha256(b"\0".join(parts) + sys.version.encode()).hexdigest()


def install(venv, complete):
    """Creates the environment and installs into it."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    python = os.path.join(venv, "bin", "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
    if complete or platform.system() != "Linux" or platform.machine() != "x86_64":
        subprocess.run(pip + ["-r", REQUIREMENTS], check=True)
        return
    wanted = open(REQUIREMENTS, encoding="utf-8").read().split()
    torch = [line for line in wanted if line.startswith("torch==")]
    subprocess.run(pip + TORCH_NEEDS + [line for line in wanted if line not in torch], check=True)
    subprocess.run(pip + ["--no-deps"] + torch + CUDA_NEEDS, check=True)
    subprocess.run([python, os.path.join(HERE, "cuda_stubs.py")], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", help="folder of the environment; replaced if it is incomplete or out of date")
    parser.add_argument("--complete", action="store_true", help="install PyTorch with all its CUDA libraries")
    args = parser.parse_args()
    marker = os.path.join(args.venv, "installed")
    wanted = stamp() + (" complete" if args.complete else "")
    if os.path.exists(marker) and open(marker).read() == wanted:
        return
    began = time.time()
    install(args.venv, args.complete)
    test = "import torch, tokenizers, safetensors; torch.randn(8, 8, requires_grad=True).sum().backward(); print(torch.__version__)"
    done = subprocess.run([os.path.join(args.venv, "bin", "python"), "-c", test], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}\n{args.venv}: PyTorch was installed but does not load; try --complete")
    with open(marker, "w") as file:
        file.write(wanted)
    print(f"{args.venv}: PyTorch {done.stdout.strip()}, installed in {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
