//! What the emulated device (tools/cuda_emulator) is for: faults of kernels and of the host that it must show. Each is planted, in a
//! process of its own, beside a twin without it. Where there is no C++ compiler it says so and checks nothing.

#[path = "common/emulator.rs"]
mod emulator;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;

use mlxcel_compute::Backend;
use mlxcel_cuda::context::{Context, Shape};
use mlxcel_cuda::module::{Source, Unit};
use mlxcel_cuda::{CudaBackend, CudaOptions, args};

/// Each writes one value a thread, or fails to.
const KERNELS: Source = Source::new(
    "planted.cu",
    r"
// Each thread reads what the last but its number wrote: across warps, so all of them have to be there.
__device__ void reversed(float *out, bool barrier) {
    __shared__ float values[64];
    values[threadIdx.x] = 100.f * blockIdx.x + threadIdx.x;
    if (barrier) __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = values[63 - threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = -1.f;
}
EXPORT with_barrier(float *out, u32) { reversed(out, true); }
EXPORT without_barrier(float *out, u32) { reversed(out, false); }

// The same within a warp.
EXPORT without_warp_barrier(float *out, u32) {
    float *own = out + blockIdx.x * 64;
    own[threadIdx.x] = threadIdx.x;
    own[threadIdx.x ^ 1] += 1.f;
}
EXPORT apart(float *out, u32 bad) {
    if (blockIdx.x == bad && threadIdx.x == 32) __syncthreads();
    __syncwarp();
    out[blockIdx.x * 64 + threadIdx.x] = 1.f;
}
EXPORT gone(float *out, u32 bad) {
    if (blockIdx.x == bad && threadIdx.x == 5) return;
    __syncwarp();
    out[blockIdx.x * 64 + threadIdx.x] = 1.f;
}
EXPORT outside(float *out, u32 bad) {
    out[blockIdx.x * 64 + threadIdx.x + (blockIdx.x == bad && threadIdx.x == 7 ? 4096 : 0)] = 1.f;
}
EXPORT outside_shared(float *out, u32 bad) {
    SHARED_AT_LAUNCH(float, shared);
    shared[threadIdx.x + (blockIdx.x == bad && threadIdx.x == 7 ? 64 : 0)] = 1.f;
    out[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x];
}
",
);

/// Hopper's copies. All but the bad block wait for theirs.
const COPIES: Source = Source::new(
    "copies.cu",
    concat!(
        include_str!("../kernels/hopper.cuh"),
        r"
EXPORT copied(float *out, u32 bad) {
    SHARED_AT_LAUNCH(char, shared);
    const u32 barrier = hopper::shared_address(shared);
    float *from = out + 1024 + blockIdx.x * 64;
    from[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) hopper::barrier_init(barrier, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        hopper::expect(barrier, 256);
        hopper::copy(barrier + 128, from, 256, barrier);
    }
    if (blockIdx.x != bad) hopper::wait(barrier, 0);
    out[blockIdx.x * 64 + threadIdx.x] = ((const float *)(shared + 128))[63 - threadIdx.x];
}
"
    ),
);

/// A cluster of three blocks, each of which copies its values and sends them to the next. `bad`: 1 no wait for the copies, 2 none for what is sent.
const CLUSTERS: Source = Source::new(
    "clusters.cu",
    concat!(
        include_str!("../kernels/cluster.cuh"),
        r"
EXPORT CLUSTER(3) sent(float *out, u32 bad) {
    SHARED_AT_LAUNCH(float, shared);
    u64 *box = (u64 *)shared;
    float *copied = shared + 4, *received = copied + 64, *from = out + 1024 + blockIdx.x * 64;
    if (threadIdx.x == 0) cluster::barrier(box, 1), cluster::barriers_made(), cluster::expect(box, 256);
    cluster::begun();
    from[threadIdx.x] = 100.f * blockIdx.x + threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 16) cluster::copy(copied + 4 * threadIdx.x, from + 4 * threadIdx.x, true);
    if (bad != 1) cluster::copied();
    __syncthreads();
    cluster::all_begun();
    if (threadIdx.x < 16) {
        float v[4];
        for (int i = 0; i < 4; i++) v[i] = copied[4 * threadIdx.x + i];
        cluster::send((blockIdx.x + 1) % 3, received + 4 * threadIdx.x, v, box);
    }
    if (bad != 2) cluster::received(box, 0);
    out[blockIdx.x * 64 + threadIdx.x] = received[63 - threadIdx.x];
}
"
    ),
);

/// A stage that is asked for anew: the bad block asks before it has read what was there.
const STAGES: Source = Source::new(
    "stages.cu",
    concat!(
        include_str!("../kernels/cluster.cuh"),
        r"
EXPORT asked(float *out, u32 bad) {
    SHARED_AT_LAUNCH(float, shared);
    u64 *box = (u64 *)shared;
    float *stage = shared + 4, *from = out + 1024 + blockIdx.x * 128;
    from[threadIdx.x] = threadIdx.x, from[64 + threadIdx.x] = 500.f;
    if (threadIdx.x == 0) cluster::barrier(box, 1);
    cluster::barriers_made();
    __syncthreads();
    if (threadIdx.x == 0) cluster::expect(box, 256), cluster::fetch(stage, from, 256, box);
    cluster::arrived(box, 0);
    __syncthreads();
    if (blockIdx.x == bad && threadIdx.x == 32) cluster::expect(box, 256), cluster::fetch(stage, from + 64, 256, box);
    out[blockIdx.x * 64 + threadIdx.x] = stage[63 - threadIdx.x];
    __syncthreads();
    if (blockIdx.x != bad && threadIdx.x == 32) cluster::expect(box, 256), cluster::fetch(stage, from + 64, 256, box);
    cluster::arrived(box, 1);
}
"
    ),
);

const BLOCKS: usize = 3;

fn launch(ctx: &Arc<Context>, kernel: &str, bad: u32) {
    let (source, shared) = match kernel {
        "copied" => (COPIES, 384),
        "sent" => (CLUSTERS, 16 + 512),
        "asked" => (STAGES, 16 + 256),
        _ => (KERNELS, 256),
    };
    // As much as the emulator guards: its end is that of a page.
    let out = ctx.held(4096 * 4, "values").expect("memory");
    let shape = Shape { grid: [BLOCKS, 1, 1], block: 64, shared };
    let function = ctx.function(&Unit::new(source, &[]), kernel, shape.shared).expect("a kernel");
    ctx.launch(function, shape, &args![out.address(), bad]);
    if let Err(error) = ctx.synchronize() {
        println!("error: {error}");
        ctx.device.fail(error);
    }
    let mut values = [0.0; BLOCKS * 64];
    ctx.read(out.address(), &mut values);
    println!("values: {values:?}");
}

/// What a child does; nothing in any other process.
#[test]
#[ignore = "runs in processes that the other tests start"]
fn child() {
    let Ok(kernel) = std::env::var("MLXCEL_EMULATED_KERNEL") else { return };
    let bad = std::env::var("MLXCEL_EMULATED_BAD").map_or(u32::MAX, |b| b.parse().expect("a block"));
    let cache = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_kernels"));
    match kernel.as_str() {
        "host data after a fault" => after_a_fault(&CudaOptions { device: 0, cache }),
        kernel => launch(&Context::open(0, cache).expect("an emulated device"), kernel, bad),
    }
}

/// Host data keeps coming for a device that failed, more than there is room for.
fn after_a_fault(options: &CudaOptions) {
    let b = CudaBackend::open(options).expect("an emulated device");
    launch(b.context(), "gone", 0);
    let mut buffer = b.buffer(100, 1000);
    for i in 0..40 {
        b.write(&mut buffer, &vec![i as f32; 100_000]);
    }
    assert!(b.read(&buffer).iter().all(|v| v.is_nan()), "nothing is made of what a failed device gives");
    println!("all NaN");
}

/// Runs a kernel on the emulated device; `None` where there is none.
fn run(kernel: &str, variables: &[(&str, &str)]) -> Option<(Output, String)> {
    let folder = emulator::built()?;
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", "--exact", "--ignored", "--nocapture"]).env("LD_LIBRARY_PATH", folder);
    command.env_remove("MLXCEL_EMULATOR_ORDER").env("MLXCEL_EMULATED_KERNEL", kernel);
    let out = command.envs(variables.iter().copied()).output().expect("this program runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Some((out, said))
}

fn values(kernel: &str, order: &str) -> Option<String> {
    let (out, said) = run(kernel, &[("MLXCEL_EMULATOR_ORDER", order)])?;
    let values = said.lines().find_map(|line| Some(line.split_once("values: ")?.1.to_owned()));
    assert!(out.status.success(), "{said}");
    Some(values.unwrap_or_else(|| panic!("{said}")))
}

#[test]
fn a_missing_barrier_shows_in_another_order() {
    let Some(right) = values("with_barrier", "forward") else { return };
    assert!(right.starts_with("[63.0, 62.0, ") && right.contains(", 263.0, 262.0, "), "{right}");
    for order in ["reverse", "mixed"] {
        assert_eq!(values("with_barrier", order).as_ref(), Some(&right), "{order}");
    }
    for kernel in ["without_barrier", "without_warp_barrier"] {
        let forward = values(kernel, "forward");
        for order in ["reverse", "mixed"] {
            assert_ne!(values(kernel, order), forward, "{kernel}, {order}");
        }
    }
}

#[test]
fn threads_that_cannot_meet_end_the_launch() {
    for (kernel, words) in [("apart", "its threads wait for each other"), ("gone", "a lane returned")] {
        for order in ["forward", "reverse", "mixed"] {
            let bad = [("MLXCEL_EMULATED_BAD", "2"), ("MLXCEL_EMULATOR_ORDER", order)];
            let Some((out, said)) = run(kernel, &bad) else { return };
            assert!(out.status.success(), "{said}");
            let where_ = format!("cuda_emulator: {kernel}: block 2, 0, 0: {words}");
            for part in
                [&where_, "error: the GPU failed in cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED", "[NaN, NaN, "]
            {
                assert!(said.contains(part), "{order}: {part:?} is not in {said}");
            }
        }
        let twin = values(kernel, "forward").expect("it ran before");
        assert!(twin.starts_with("[1.0, 1.0, ") && !twin.contains("NaN"), "{twin}");
    }
}

/// What a kernel of compute capability 9.0 said, with `bad` or without.
fn on_hopper(kernel: &str, order: &str, bad: &str) -> Option<String> {
    with_copies("late", kernel, order, bad)
}

/// The same with copies that arrive late, or early.
fn with_copies(copies: &str, kernel: &str, order: &str, bad: &str) -> Option<String> {
    let variables = [
        ("MLXCEL_EMULATOR_CAPABILITY", "90"),
        ("MLXCEL_EMULATOR_ORDER", order),
        ("MLXCEL_EMULATOR_COPIES", copies),
        ("MLXCEL_EMULATED_BAD", bad),
    ];
    let (out, said) = run(kernel, &variables)?;
    assert!(out.status.success(), "{said}");
    Some(said)
}

#[test]
fn a_missing_wait_for_a_copy_shows() {
    for order in ["forward", "reverse", "mixed"] {
        let on_hopper = |bad| on_hopper("copied", order, bad);
        let (Some(bad), Some(twin)) = (on_hopper("1"), on_hopper("7")) else { return };
        assert!(bad.contains("values: [63.0, 62.0, ") && bad.contains(", 0.0, NaN, NaN, "), "{order}: {bad}");
        assert!(twin.contains("values: [63.0, 62.0, ") && !twin.contains("NaN"), "{order}: {twin}");
    }
}

#[test]
fn a_copy_asked_for_too_early_shows() {
    for order in ["forward", "reverse", "mixed"] {
        for copies in ["early", "late"] {
            let Some(twin) = with_copies(copies, "asked", order, "7") else { return };
            assert!(twin.contains("values: [63.0, 62.0, ") && !twin.contains("500.0"), "{order}, {copies}: {twin}");
        }
        let bad = with_copies("early", "asked", order, "1").expect("it ran before");
        assert!(bad.contains("values: [63.0, 62.0, ") && bad.contains(", 500.0, 500.0, "), "{order}: {bad}");
    }
}

#[test]
fn a_missing_wait_in_a_cluster_shows() {
    for order in ["forward", "reverse", "mixed"] {
        let Some(twin) = on_hopper("sent", order, "7") else { return };
        let right = twin.contains("values: [263.0, 262.0, ") && twin.contains(", 200.0, 63.0, ");
        assert!(right && twin.contains(", 100.0]") && !twin.contains("NaN"), "{order}: {twin}");
        for bad in ["1", "2"] {
            let said = on_hopper("sent", order, bad).expect("it ran before");
            assert!(said.contains("values: ") && said.contains("NaN, NaN, "), "{order}, {bad}: {said}");
        }
    }
}

#[test]
fn an_access_outside_ends_the_process_with_its_place() {
    for kernel in ["outside", "outside_shared"] {
        let Some((out, said)) = run(kernel, &[("MLXCEL_EMULATED_BAD", "1")]) else { return };
        let place = format!("cuda_emulator: {kernel}: block 1, 0, 0, thread 7: an access to memory that is not there");
        assert!(out.status.signal() == Some(11) && said.contains(&place), "{:?}: {said}", out.status);
        let twin = values(kernel, "forward").expect("it ran before");
        assert!(twin.starts_with("[1.0, 1.0, "), "{twin}");
    }
}

#[test]
fn host_data_for_a_failed_device_goes_nowhere() {
    let Some((out, said)) = run("host data after a fault", &[]) else { return };
    assert!(out.status.success() && said.contains("all NaN"), "{said}");
}

/// The host's own fault, for which a C++ program stands: Rust that could do it is nowhere but in the queue.
#[test]
fn host_memory_written_too_early_shows() {
    let Some(folder) = emulator::built() else { return };
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/cuda_emulator/host_memory.cpp");
    let program = folder.join("host_memory");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(compiler);
    let out = command.arg("-std=c++17").arg(source).arg("-o").arg(&program).arg("-ldl").output().expect("a compiler");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = Command::new(&program).env("LD_LIBRARY_PATH", folder).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let expected = "pinned, waited for: 7\npinned, overwritten: 9\nnot pinned, overwritten: 7\nread before the wait: 0, after: 7\n\
                    outside: 1\n";
    assert_eq!(said, expected);
}
