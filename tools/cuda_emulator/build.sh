#!/bin/sh
# Builds the emulator: libcuda.so and libnvrtc.so, and what kernels are compiled with, in a folder (target/cuda_emulator).
#
#     tools/cuda_emulator/build.sh [FOLDER]
#     LD_LIBRARY_PATH=target/cuda_emulator MLXCEL_NEED_GPU=1 cargo test --release -p mlxcel-cuda
set -eu
own=$(cd "$(dirname "$0")" && pwd)
to=${1:-$own/../../target/cuda_emulator}
mkdir -p "$to"
cxx=${CXX:-c++}
flags="-std=c++17 -O2 -Wall -Wextra -fPIC -shared -fvisibility=hidden"
version=$(cat "$own/kernel.h" "$own/barrier.h" "$own/hopper.h" "$own/cluster.h" "$own/shared.h" "$own/compiler.cpp" | cksum | cut -d ' ' -f 1)
# Under other names first: whoever uses the old ones keeps them whole, and what does not compile replaces nothing.
$cxx $flags "$own/driver.cpp" "$own/scheduler.cpp" -o "$to/libcuda.so.$$" -ldl -pthread
$cxx $flags "-DEMULATOR_VERSION=$((version % 1000000))" "$own/compiler.cpp" -o "$to/libnvrtc.so.$$" -ldl
for file in kernel.h barrier.h hopper.h cluster.h shared.h; do cp "$own/$file" "$to/$file.$$"; done
for file in kernel.h barrier.h hopper.h cluster.h shared.h libcuda.so libnvrtc.so; do mv "$to/$file.$$" "$to/$file"; done
echo "$to"
