"""Empty libraries in the place of the CUDA libraries that an installed PyTorch is linked with but that are not there.

    VENV/bin/python cuda_stubs.py

The dynamic loader wants every library that libtorch_cuda.so names, and an address for every symbol whose address is taken; it calls
none of them before a GPU is used. Each stub has its library's name, the version names that PyTorch asks for, and the symbols, which
all lead to an illegal instruction. The stubs go beside PyTorch's own libraries. For running on a CPU only.
"""

import collections
import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile


def elf_tables(path):
    """`(needed libraries, undefined symbols as (name, version or None), defined symbols, version -> library)` of an ELF file."""
    text = subprocess.run(["readelf", "-W", "-d", "-V", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
    undefined, defined, versions, library = set(), set(), {}, None
    for line in text.splitlines():
        if match := re.search(r"Version: 1  File: (\S+)", line):
            library = match.group(1)
        elif match := re.search(r"Name: (\S+)  Flags: \S+  Version: \d+", line):
            versions[match.group(1)] = library
        fields = line.split()
        if len(fields) >= 8 and re.fullmatch(r"\d+:", fields[0]):
            name, _, version = fields[7].replace("@@", "@").partition("@")
            if fields[6] != "UND":
                defined.add(name)
            elif fields[4] == "GLOBAL":
                undefined.add((name, version or None))
    return needed, undefined, defined, versions


def build(library, symbols, folder):
    """Compiles one stub; `symbols` maps a version name (or None) to names."""
    names = sorted(set().union(*symbols.values()))
    with tempfile.TemporaryDirectory() as work:
        assembly, versions = os.path.join(work, "stub.s"), os.path.join(work, "stub.map")
        with open(assembly, "w") as file:
            file.write(".text\n" + "".join(f".globl {n}\n.type {n}, @function\n{n}:\n" for n in names))
            file.write("ud2\n.section .note.GNU-stack, \"\", @progbits\n")
        command = ["cc", "-shared", "-nostdlib", "-o", os.path.join(folder, library), assembly, f"-Wl,-soname,{library}"]
        named = {version: names for version, names in symbols.items() if version}
        if named:
            with open(versions, "w") as file:
                for version, names in named.items():
                    file.write(f"{version} {{ global: {' '.join(n + ';' for n in sorted(names))} }};\n")
            command.append(f"-Wl,--version-script,{versions}")
        subprocess.run(command, check=True)


def main():
    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit("PyTorch is not installed for this Python: run install_cpu.py instead of this script")
    site = os.path.dirname(os.path.dirname(torch.origin))
    folder = os.path.join(site, "torch", "lib")
    own = glob.glob(os.path.join(folder, "*.so*"))
    present = own + glob.glob(os.path.join(site, "nvidia", "**", "*.so*"), recursive=True)
    here = {os.path.basename(path) for path in present}
    needed, undefined, defined, versions = set(), set(), set(), {}
    for path in present:
        tables = elf_tables(path)
        defined |= tables[2]
        if path in own:
            needed |= tables[0]
            undefined |= tables[1]
            versions.update(tables[3])
    missing = sorted(name for name in needed - here if re.match(r"lib(cu|nv|nccl)", name))
    if not missing:
        return
    stubs = {library: collections.defaultdict(set) for library in missing}
    plain = [library for library in missing if library not in versions.values()] or missing[:1]
    for name, version in undefined:
        if versions.get(version) in stubs:
            stubs[versions[version]][version].add(name)
        elif version is None and re.match(r"(cu|nv|nccl)", name) and name not in defined:
            for library in plain:  # whose it is cannot be seen: the libraries without version names all get it
                stubs[library][None].add(name)
    for library, symbols in stubs.items():
        build(library, symbols, folder)
    print(f"{len(stubs)} stubs: {' '.join(missing)}")


if __name__ == "__main__":
    main()
