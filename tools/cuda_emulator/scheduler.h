// Runs launches: blocks on all cores, the threads of a block as fibers.

#pragma once

#include <string>
#include <vector>

#include "shared.h"

namespace emulator {

struct Kernel {
    Entry entry;
    std::string name;
    unsigned arguments, cluster;  // how many it takes; blocks that run together
};

struct Launch {
    const Kernel *kernel;
    Dim blocks, threads;
    uint32_t memory;
    std::vector<uint64_t> arguments;
};

extern const Services SERVICES;

// Runs a launch to its end. What went wrong, in words, or nothing.
std::string run(const Launch &launch);

}  // namespace emulator
