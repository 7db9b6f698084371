//! Kernels from source to something that can be launched: compiled for the device at first use, kept on disk.
//!
//! A kernel file stands for a family: sizes that decide how it is unrolled are given as definitions. What was compiled is
//! kept under a name that is the hash of everything it depends on (source, definitions, options, architecture, compiler),
//! so a stale file is never read; a damaged one fails its checksum and is compiled anew.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use mlxcel_compute::DeltaShape;
use mlxcel_compute::conformance::all_formats;
use mlxcel_compute::format::{DType, QuantFormat, WeightFormat};
use sha2::{Digest, Sha256};

use crate::device::Device;
use crate::error::CudaError;
use crate::timeline;

/// A kernel file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// File name.
    pub name: &'static str,
    text: &'static str,
}

const COMMON: &str = concat!(include_str!("../kernels/ptx.cuh"), "\n", include_str!("../kernels/common.cuh"));

impl Source {
    /// A file of this name and text; what every kernel file begins with is put before it.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Source { name, text }
    }
}

macro_rules! sources {
    ($($constant:ident $file:literal $($more:literal)*;)*) => {
        $(#[doc = concat!("kernels/", $file)]
        pub const $constant: Source = Source::new(
            $file,
            concat!(include_str!(concat!("../kernels/", $file)) $(, "\n", include_str!(concat!("../kernels/", $more)))*),
        );)*
    };
}

sources! {
    ROWS "rows.cu";
    LINEAR "linear.cu" "cluster.cuh" "split.cu" "teams.cu" "hopper.cuh" "wide.cu";
    DENSE "dense.cu";
    ATTEND "attend.cu";
    MOE "moe.cu";
    RECURRENT "recurrent.cu";
}

/// A definition, `-Dname=value`.
pub type Define = (&'static str, i64);

/// Contraction is written out in the sources (the row law: fused or not is never the compiler's choice).
const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-lineinfo"];

/// Definitions from outside, for those who try variants: `MLXCEL_CUDA_DEFINES=NAME=VALUE,...`, and what a timeline needs
/// ([`crate::timeline`]).
fn tried() -> Vec<String> {
    let list = std::env::var("MLXCEL_CUDA_DEFINES").unwrap_or_default();
    let given = list.split(',').filter(|d| !d.is_empty()).map(|d| format!("-D{d}"));
    given.chain(timeline::folder().map(|_| "-DTIMELINE".to_owned())).collect()
}

/// A kernel file with its definitions, for one architecture.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The file.
    pub source: Source,
    /// Definitions, in a fixed order.
    pub defines: Vec<Define>,
}

impl Unit {
    /// A file with definitions.
    pub fn new(source: Source, defines: &[Define]) -> Self {
        Unit { source, defines: defines.to_vec() }
    }

    /// What the compiler is told.
    fn options(&self, arch: &str) -> Vec<String> {
        let defines = self.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        let arch = std::iter::once(format!("--gpu-architecture={arch}"));
        OPTIONS.iter().map(|o| (*o).to_owned()).chain(arch).chain(defines).chain(tried()).collect()
    }

    fn text(&self) -> String {
        format!("{COMMON}\n{}", self.source.text)
    }

    /// Compiles to machine code of an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// [`CudaError::NoNvrtc`]; [`CudaError::Compile`] with the compiler's log.
    pub fn compile(&self, arch: &str) -> Result<Vec<u8>, CudaError> {
        nvrtc_version()?;
        let fail = |log: String| CudaError::Compile { kernel: self.source.name.into(), arch: arch.into(), log };
        let c_string = |s: String| CString::new(s).map_err(|e| fail(e.to_string()));
        let (text, name) = (c_string(self.text())?, c_string(self.source.name.to_owned())?);
        let program = nvrtc::create_program(&text, Some(&name)).map_err(|e| fail(e.to_string()))?;
        // SAFETY: the program was just made, text and name outlive it, and it is destroyed once, below.
        let compiled = unsafe { nvrtc::compile_program(program, &self.options(arch)) };
        let out = match compiled {
            Ok(()) => machine_code(program).map_err(|e| fail(e.to_string())),
            Err(e) => {
                // SAFETY: as above.
                let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
                let log: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
                Err(fail(format!("{e}: {}", String::from_utf8_lossy(&log).trim())))
            }
        };
        // SAFETY: as above.
        let _ = unsafe { nvrtc::destroy_program(program) };
        out
    }

    /// Compiles and puts the result where a device of that architecture looks for it: for machines without a compiler.
    ///
    /// # Errors
    /// As [`Unit::compile`]; what the folder refuses.
    pub fn precompile(&self, arch: &str, folder: &Path) -> Result<PathBuf, CudaError> {
        let path = folder.join(self.file_name(arch, nvrtc_version()?));
        if kept(&path).is_none() {
            let refused =
                |e: std::io::Error| CudaError::Call { call: "write", reason: format!("{}: {e}", path.display()) };
            keep(folder, &path, &self.compile(arch)?).map_err(refused)?;
        }
        Ok(path)
    }

    /// Name of the compiled file.
    fn file_name(&self, arch: &str, version: (i32, i32)) -> String {
        let mut hash = Sha256::new();
        for part in [self.text(), self.options(arch).join(" "), format!("{version:?}")] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        format!("{}-{arch}-{hash}.cubin", self.source.name.trim_end_matches(".cu"))
    }
}

/// The definitions under which `linear.cu` multiplies by matrices of a format; `None` for formats that `dense.cu` takes.
pub fn linear_defines(format: WeightFormat) -> Option<[Define; 4]> {
    let (kind, bits, group, wide) = match format {
        WeightFormat::Float(DType::Bf16) => (3, 16, 16, false),
        WeightFormat::Float(_) => return None,
        // bf16 scales stay as they are, f16 ones are stored as f32.
        WeightFormat::Quant(quant @ QuantFormat::Affine { .. }, scales) => {
            (0, quant.bits(), quant.group(), scales != DType::Bf16)
        }
        WeightFormat::Quant(quant @ (QuantFormat::Mxfp4 | QuantFormat::Nvfp4), _) => {
            (1, quant.bits(), quant.group(), false)
        }
        WeightFormat::Quant(quant @ QuantFormat::Mxfp8, _) => (2, quant.bits(), quant.group(), false),
    };
    Some([("KIND", kind), ("BITS", bits as i64), ("GROUP", group as i64), ("SCALE32", i64::from(wide))])
}

/// Head widths that `attend.cu` is compiled for.
pub const HEAD_DIMS: [usize; 9] = [16, 32, 64, 80, 96, 128, 192, 256, 512];
/// Key widths that `recurrent.cu` is compiled for.
pub const KEY_DIMS: [usize; 3] = [16, 64, 128];

/// Every unit that some checkpoint makes a device compile.
pub fn all_units() -> Vec<Unit> {
    let one = |source, name, value| Unit::new(source, &[(name, value)]);
    let mut units = vec![Unit::new(ROWS, &[]), Unit::new(MOE, &[])];
    units.extend([0, 1].map(|half| one(DENSE, "HALF", half)));
    for defines in all_formats().into_iter().filter_map(linear_defines) {
        let unit = Unit::new(LINEAR, &defines);
        // Formats that differ only in how their scales lie in the file share one.
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    units.extend(HEAD_DIMS.map(|width| one(ATTEND, "HEAD_DIM", width as i64)));
    units.extend(KEY_DIMS.map(|key_dim| {
        let shape = DeltaShape { key_heads: 2, value_heads: 4, key_dim, value_dim: key_dim, taps: 4 };
        crate::state::unit(&shape, crate::state::CHUNK)
    }));
    units
}

fn machine_code(program: nvrtc_sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::NvrtcError> {
    let mut size = 0usize;
    // SAFETY: the program was compiled.
    unsafe { nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut size) }.result()?;
    let mut code = vec![0u8; size];
    // SAFETY: the buffer has the size that was asked for.
    unsafe { nvrtc_sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast::<c_char>()) }.result()?;
    Ok(code)
}

/// Version of the compiler.
///
/// # Errors
/// [`CudaError::NoNvrtc`].
pub fn nvrtc_version() -> Result<(i32, i32), CudaError> {
    // SAFETY: opens a library by its well-known names.
    if !unsafe { nvrtc_sys::is_culib_present() } {
        return Err(CudaError::NoNvrtc);
    }
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is there.
    unsafe { nvrtc_sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().map_err(|_| CudaError::NoNvrtc)?;
    Ok((major, minor))
}

/// A kernel that can be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub(crate) usize);

impl Function {
    pub(crate) fn raw(self) -> sys::CUfunction {
        self.0 as sys::CUfunction
    }
}

/// The kernels of one device.
pub struct Modules {
    device: Arc<Device>,
    cache: Option<PathBuf>,
    loaded: Mutex<HashMap<Unit, usize>>,
    /// Clusters of a function with so much shared memory that have room at the same time.
    at_once: Mutex<HashMap<(Function, usize), usize>>,
}

impl Modules {
    /// Kernels for a device, kept in the folder `cache` if there is one.
    pub fn new(device: Arc<Device>, cache: Option<PathBuf>) -> Self {
        Modules { device, cache, loaded: Mutex::default(), at_once: Mutex::default() }
    }

    /// A kernel of a unit, and how much shared memory it may be given.
    ///
    /// # Errors
    /// When it cannot be compiled or loaded, or has no such kernel.
    pub fn function(&self, unit: &Unit, name: &str, shared: usize) -> Result<Function, CudaError> {
        let module = self.module(unit)? as sys::CUmodule;
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and stays so.
        let function = unsafe { result::module::get_function(module, c_name) };
        let function = function.map_err(|e| match CudaError::call("cuModuleGetFunction", e) {
            CudaError::Call { call, reason } => CudaError::Call { call, reason: format!("{name}: {reason}") },
            other => other,
        })?;
        if shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            unsafe { result::function::set_function_attribute(function, attribute, shared as i32) }
                .map_err(|e| CudaError::call("cuFuncSetAttribute", e))?;
        }
        Ok(Function(function as usize))
    }

    /// Clusters of `blocks` blocks of a kernel that have room on the device at the same time; one if it does not say.
    pub fn clusters_at_once(&self, function: Function, blocks: usize, threads: usize, shared: usize) -> usize {
        let mut known = self.at_once.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(clusters) = known.get(&(function, shared)) {
            return *clusters;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: blocks as u32,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.device.stream,
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        if self.device.bind().is_err() {
            return 1; // the fault shows where something is launched
        }
        let mut clusters = 0;
        // SAFETY: the function is loaded; both pointers outlive the call.
        let said = unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function.raw(), &raw const config) };
        if said.result().is_err() {
            return 1;
        }
        let clusters = clusters.max(1) as usize;
        known.insert((function, shared), clusters);
        clusters
    }

    /// Source files and handles of what was loaded.
    pub(crate) fn loaded(&self) -> Vec<(&'static str, usize)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().map(|(unit, module)| (unit.source.name, *module)).collect()
    }

    fn module(&self, unit: &Unit) -> Result<usize, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(unit) {
            return Ok(*module);
        }
        self.device.bind()?;
        let code = self.code(unit)?;
        // SAFETY: the code is a whole file of machine code, from the compiler or with its checksum right.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }
            .map_err(|e| CudaError::call("cuModuleLoadData", e))?;
        loaded.insert(unit.clone(), module as usize);
        Ok(module as usize)
    }

    fn code(&self, unit: &Unit) -> Result<Vec<u8>, CudaError> {
        let arch = self.device.arch();
        let version = match nvrtc_version() {
            Ok(version) => version,
            // Without a compiler what another one left will do, whichever it was.
            Err(error) => return self.cache.as_deref().and_then(|c| any_kept(c, unit, &arch)).ok_or(error),
        };
        let Some(folder) = &self.cache else { return unit.compile(&arch) };
        let path = folder.join(unit.file_name(&arch, version));
        if let Some(code) = kept(&path) {
            return Ok(code);
        }
        let code = unit.compile(&arch)?;
        // A cache that cannot be written costs time, not answers.
        let _ = keep(folder, &path, &code);
        Ok(code)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        if let Some(folder) = timeline::folder()
            && self.device.bind().is_ok()
        {
            timeline::write(&folder, &self.loaded());
        }
    }
}

/// Versions of the compiler to look for where there is none.
const VERSIONS: [(i32, i32); 18] = [
    (13, 5),
    (13, 4),
    (13, 3),
    (13, 2),
    (13, 1),
    (13, 0),
    (12, 9),
    (12, 8),
    (12, 7),
    (12, 6),
    (12, 5),
    (12, 4),
    (12, 3),
    (12, 2),
    (12, 1),
    (12, 0),
    (14, 0),
    (14, 1),
];

fn any_kept(folder: &Path, unit: &Unit, arch: &str) -> Option<Vec<u8>> {
    VERSIONS.iter().find_map(|v| kept(&folder.join(unit.file_name(arch, *v))))
}

/// A kept file: the code, then its checksum.
fn kept(path: &Path) -> Option<Vec<u8>> {
    let mut code = std::fs::read(path).ok()?;
    let sum = code.split_off(code.len().checked_sub(32)?);
    (Sha256::digest(&code)[..] == sum[..]).then_some(code)
}

/// Writes a file as a whole or not at all.
fn keep(folder: &Path, path: &Path, code: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(code)?;
    file.write_all(&Sha256::digest(code))?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub").join("x.cubin");
        assert_eq!(kept(&path), None);
        keep(path.parent().unwrap(), &path, b"machine code").unwrap();
        assert_eq!(kept(&path).as_deref(), Some(&b"machine code"[..]));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(kept(&path), None, "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(kept(&path), None, "cut at {at}");
        }
    }

    #[test]
    fn units_are_there_once_and_for_every_format() {
        let units = all_units();
        let twice: std::collections::HashSet<&Unit> = units.iter().collect();
        assert_eq!(twice.len(), units.len());
        for format in all_formats() {
            let float = matches!(format, WeightFormat::Float(DType::F32 | DType::F16));
            assert_eq!(linear_defines(format).is_none(), float, "{format}");
            let known = linear_defines(format).is_none_or(|d| units.contains(&Unit::new(LINEAR, &d)));
            assert!(known, "{format}");
        }
        // 18 affine formats twice, three others, bf16.
        assert_eq!(units.iter().filter(|u| u.source == LINEAR).count(), 18 * 2 + 3 + 1);
        for source in [ROWS, DENSE, ATTEND, MOE, RECURRENT] {
            assert!(units.iter().any(|u| u.source == source), "{}", source.name);
        }
    }

    #[test]
    fn names_depend_on_everything() {
        let unit = |v| Unit::new(LINEAR, &[("BITS", v)]);
        let name = unit(4).file_name("sm_90a", (13, 0));
        assert!(name.starts_with("linear-sm_90a-"), "{name}");
        assert_ne!(name, unit(8).file_name("sm_90a", (13, 0)));
        assert_ne!(name, unit(4).file_name("sm_80", (13, 0)));
        assert_ne!(name, unit(4).file_name("sm_90a", (13, 1)));
        assert_ne!(name, Unit::new(ROWS, &[("BITS", 4)]).file_name("sm_90a", (13, 0)));
    }
}
