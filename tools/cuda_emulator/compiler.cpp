// libnvrtc.so: compiles a kernel file for the processor, with the C++ compiler that $CXX or `c++` names. What comes out is a shared library
// behind 16 bytes: the mark of an ELF file, and its length.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

struct Program {
    std::string text, name, log, code;
};

std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

void write(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }

// Where kernel.h lies: beside this library.
std::string own_folder() {
    Dl_info info = {};
    dladdr((void *)own_folder, &info);
    std::string path = info.dli_fname ? info.dli_fname : "./x";
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string quoted(const std::string &text) { return "'" + text + "'"; }

bool succeeds(const std::string &command, const std::string &log, std::string &said) {
    const int status = system((command + " >" + quoted(log) + " 2>&1").c_str());
    said = read(log);
    return status == 0;
}

// Kernels of the text, and the blocks of their clusters. The marks of both go.
std::vector<std::pair<std::string, std::string>> kernels(std::string &text) {
    std::vector<std::pair<std::string, std::string>> found;
    static const std::regex one("emulator_kernel\\s+void\\s+(?:emulator_cluster_(\\d+)\\s+)?(\\w+)\\s*\\(");
    for (std::sregex_iterator i(text.begin(), text.end(), one), end; i != end; ++i) found.emplace_back((*i)[2], (*i)[1].matched ? (*i)[1].str() : "1");
    text = std::regex_replace(text, std::regex("\\bemulator_kernel\\b"), "__attribute__((visibility(\"hidden\")))");
    text = std::regex_replace(text, std::regex("\\bemulator_cluster_\\d+\\b"), "");
    return found;
}

}  // namespace

// What kernels are compiled with is part of the version (build.sh), so that none is taken from a cache that was compiled with another.
API nvrtcVersion(int *major, int *minor) { return *major = 0, *minor = EMULATOR_VERSION, 0; }

API nvrtcCreateProgram(Program **program, const char *text, const char *name, int, const char **, const char **) {
    return *program = new Program{text, name ? name : "kernel.cu", {}, {}}, 0;
}

API nvrtcDestroyProgram(Program **program) {
    delete *program;
    return *program = nullptr, 0;
}

API nvrtcCompileProgram(Program *program, int count, const char **options) {
    std::string defines;
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "-D", 2)) defines += " " + quoted(options[i]);
        else if (!strncmp(options[i], "--gpu-architecture=sm_", 22)) defines += " -D__CUDA_ARCH__=" + std::to_string(atoi(options[i] + 22) * 10) + (strchr(options[i] + 22, 'a') ? " -D__CUDA_ARCH_FEAT_SM90_ALL" : "");
    const char *temporary = getenv("TMPDIR");
    std::string at = std::string(temporary ? temporary : "/tmp") + "/cuda_emulator_XXXXXX";
    if (!mkdtemp(at.data())) return 1;
    const std::string base = at + "/kernel", log = at + "/log", cxx = getenv("CXX") ? getenv("CXX") : "c++";
    write(base + ".cc", "# 1 \"" + program->name + "\"\n" + program->text);
    const std::string options_of_all = " -std=c++17 -O2 -ffp-contract=off -fno-math-errno -w -fPIC -fvisibility=hidden"
#if defined(__x86_64__)
                                       " -mavx2 -mfma -mf16c"
#endif
        ;
    bool ok = succeeds(cxx + options_of_all + " -DMLXCEL_EMULATED -I" + quoted(own_folder()) + defines + " -E " + base + ".cc -o " + base + ".ii", log, program->log);
    if (ok) {
        std::string text = read(base + ".ii");
        for (const auto &[name, cluster] : kernels(text)) {
            const std::string entry = "emulator_enter_" + name;
            text += "\nextern \"C\" __attribute__((visibility(\"default\"))) const unsigned emulator_count_" + name + " = emulator::count(" + name + ");" +
                    "\nextern \"C\" __attribute__((visibility(\"default\"))) const unsigned emulator_cluster_" + name + " = " + cluster + ";" +
                    "\nextern \"C\" __attribute__((visibility(\"default\"))) void " + entry + "(void **a) { emulator::enter(" + name + ", a); }";
        }
        write(base + ".ii", text + "\n");
        ok = succeeds(cxx + options_of_all + " -shared " + base + ".ii -o " + base + ".so", log, program->log);
    }
    if (ok) {
        const std::string library = read(base + ".so");
        uint64_t head[2] = {0, library.size()};
        memcpy(head, "\x7f" "ELF", 4);
        program->code.assign((const char *)head, sizeof head);
        program->code += library;
    }
    for (const char *end : {".cc", ".ii", ".so"}) unlink((base + end).c_str());
    unlink(log.c_str());
    rmdir(at.c_str());
    return ok ? 0 : 6;  // NVRTC_ERROR_COMPILATION
}

API nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, 0; }
API nvrtcGetProgramLog(Program *program, char *log) { return memcpy(log, program->log.c_str(), program->log.size() + 1), 0; }
API nvrtcGetCUBINSize(Program *program, size_t *size) { return *size = program->code.size(), 0; }
API nvrtcGetCUBIN(Program *program, char *code) { return memcpy(code, program->code.data(), program->code.size()), 0; }
extern "C" __attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) { return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS"; }
