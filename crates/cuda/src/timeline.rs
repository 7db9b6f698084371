//! When each block of threads of each kernel ran, for `tools/gpu_timeline`.
//!
//! With `MLXCEL_CUDA_TIMELINE=FOLDER` kernels are compiled so that every block notes when it came to wait for the launches
//! before it, went on, and ended (`ptx.cuh`). What the last of them noted is written to the folder when the device is let go.
//! Noting takes a few per cent of the time.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

use cudarc::driver::sys;

/// Bytes of the kernels' `Stay`.
const STAY: usize = 40;

/// Where records go, if anybody wants them.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os("MLXCEL_CUDA_TIMELINE").map(PathBuf::from)
}

/// Writes the records of modules, `(source file, handle)`, each into a file of its own: `NUMBER.SOURCE.stays`. The device's context is
/// current. What cannot be read or written is left out; the tool says when nothing is there.
pub fn write(folder: &Path, modules: &[(&'static str, usize)]) {
    if std::fs::create_dir_all(folder).is_err() {
        return;
    }
    for (i, (source, module)) in modules.iter().enumerate() {
        let module = *module as sys::CUmodule;
        let mut count = [0; 4];
        if read(module, c"timeline_count", &mut count).is_none() {
            continue;
        }
        let mut stays = vec![0; u32::from_le_bytes(count) as usize * STAY];
        let Some(kept) = read(module, c"timeline_stays", &mut stays) else { continue };
        stays.truncate(kept);
        let _ = std::fs::write(folder.join(format!("{i}.{source}.stays")), stays);
    }
}

/// Fills `out` with the beginning of a global, as far as that goes; how many bytes that were.
fn read(module: sys::CUmodule, name: &CStr, out: &mut [u8]) -> Option<usize> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the module is loaded; the name ends with a zero; both results are written to places of their own.
    let found = unsafe { sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr()) };
    found.result().ok()?;
    let count = out.len().min(bytes);
    // SAFETY: as many bytes are there on either side. The call waits for the device.
    let copied = unsafe { sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast::<c_void>(), address, count) };
    copied.result().ok().map(|()| count)
}
