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
cp "$own/kernel.h" "$own/shared.h" "$to"
# Placed under other names first, so that a process that uses the old ones keeps them whole.
$cxx $flags "$own/driver.cpp" "$own/scheduler.cpp" -o "$to/libcuda.so.new" -ldl -pthread
$cxx $flags "$own/compiler.cpp" -o "$to/libnvrtc.so.new" -ldl
mv "$to/libcuda.so.new" "$to/libcuda.so"
mv "$to/libnvrtc.so.new" "$to/libnvrtc.so"
echo "$to"
