//! Which backend computes: the one asked for, or the best that this machine has. The only place that tells them apart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_cuda::{CudaBackend, CudaError, CudaOptions, module};

use crate::draft::{Notice, Notify};
use crate::locate::Environment;

/// Backends by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// A CUDA device that can be used, else the processor
    #[default]
    Auto,
    /// The processor
    Cpu,
    /// A CUDA device
    Cuda,
}

/// What a backend is chosen and made by.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Which.
    pub backend: BackendArg,
    /// The CUDA device, if one was named.
    pub device: Option<usize>,
    /// Threads of the processor; `None` = one per core.
    pub threads: Option<u16>,
    /// Precision on the processor.
    pub precision: Precision,
}

/// A backend that was opened.
#[derive(Clone)]
pub enum Chosen {
    /// The processor.
    Cpu(Arc<CpuBackend>),
    /// The processor with a fault, for measurements that must fail.
    Faulty(Arc<Faulty<CpuBackend>>),
    /// A CUDA device.
    Cuda(Arc<CudaBackend>),
}

impl Chosen {
    /// The processor.
    pub fn cpu(threads: Option<u16>, precision: Precision) -> Self {
        Chosen::Cpu(Arc::new(processor(threads, precision)))
    }

    /// The processor with a fault.
    pub fn faulty(threads: Option<u16>, precision: Precision, fault: Fault) -> Self {
        Chosen::Faulty(Arc::new(Faulty::new(processor(threads, precision), fault)))
    }

    /// Threads that it computes with, of which `asked` were asked for; 0 where that says nothing.
    pub fn threads(&self, asked: Option<u16>) -> usize {
        match self {
            Chosen::Cpu(_) | Chosen::Faulty(_) => cores(asked),
            Chosen::Cuda(_) => 0,
        }
    }

    /// What it is, where it is not this machine's processor.
    pub fn accelerator(&self) -> Option<String> {
        match self {
            Chosen::Cpu(_) | Chosen::Faulty(_) => None,
            Chosen::Cuda(backend) => Some(backend.describe()),
        }
    }
}

fn processor(threads: Option<u16>, precision: Precision) -> CpuBackend {
    CpuBackend::new(precision, cores(threads))
}

/// Threads of the processor: as many as asked for, else one per core.
fn cores(threads: Option<u16>) -> usize {
    threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}

impl Wish {
    /// Opens the backend, and says which it is and why.
    ///
    /// # Errors
    /// CUDA was asked for and cannot be had; the message says what is missing.
    pub fn open(&self, environment: &Environment, notify: &mut Notify<'_>) -> Result<Chosen> {
        let (cuda, line) = self.decide(|device| open_cuda(device, environment.kernels()))?;
        notify(Notice::Backend { line: &line, auto: self.backend == BackendArg::Auto });
        Ok(cuda.map_or_else(|| Chosen::cpu(self.threads, self.precision), Chosen::Cuda))
    }

    /// The CUDA backend, or `None` for the processor; and the line that says why.
    fn decide<T>(&self, open: impl FnOnce(usize) -> Result<T, CudaError>) -> Result<(Option<T>, String)> {
        let device = self.device.unwrap_or_default();
        let unavailable = |error| {
            let hint = "--backend cpu computes on the processor";
            anyhow!("--backend {}: {error}; {hint}", if self.backend == BackendArg::Auto { "auto" } else { "cuda" })
        };
        match self.backend {
            BackendArg::Cpu => Ok((None, "backend: cpu (as asked for)".into())),
            BackendArg::Cuda => {
                let backend = open(device).map_err(unavailable)?;
                Ok((Some(backend), format!("backend: cuda, device {device} (as asked for)")))
            }
            BackendArg::Auto => match open(device) {
                Ok(backend) => Ok((
                    Some(backend),
                    format!("backend: cuda, device {device} (auto: --backend cpu for the processor)"),
                )),
                // There are devices, and the one that was named is none of them.
                Err(error @ CudaError::NoSuchDevice { .. }) => Err(unavailable(error)),
                Err(error) => Ok((None, format!("backend: cpu (auto: {error})"))),
            },
        }
    }
}

fn open_cuda(device: usize, cache: Option<PathBuf>) -> Result<Arc<CudaBackend>, CudaError> {
    mlxcel_cuda::device::count()?;
    // Better found out now than at the first kernel. What an earlier start compiled will do.
    if let Err(error) = module::nvrtc_version()
        && !cache.as_deref().is_some_and(has_kernels)
    {
        return Err(error);
    }
    Ok(Arc::new(CudaBackend::open(&CudaOptions { device, cache })?))
}

/// Whether a folder holds compiled kernels.
fn has_kernels(folder: &Path) -> bool {
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.any(|file| file.path().extension().is_some_and(|end| end == "cubin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(backend: BackendArg, found: Result<(), CudaError>) -> Result<(Option<()>, String), String> {
        let wish = Wish { backend, device: Some(1), threads: None, precision: Precision::Int8 };
        let open = |device| {
            assert_eq!(device, 1);
            found
        };
        wish.decide(open).map_err(|error| format!("{error:#}"))
    }

    /// Everything that a machine can lack.
    fn lacking() -> Vec<CudaError> {
        vec![
            CudaError::NoDriver,
            CudaError::NoDevice,
            CudaError::DriverTooOld { found: 11_040 },
            CudaError::DeviceTooOld { name: "Tesla V100".into(), found: 70 },
            CudaError::NoNvrtc,
            CudaError::Call { call: "cuInit", reason: "CUDA_ERROR_SYSTEM_NOT_READY".into() },
        ]
    }

    #[test]
    fn auto_takes_what_there_is_and_says_why() {
        let (backend, line) = decide(BackendArg::Auto, Ok(())).expect("a device");
        assert!(backend.is_some() && line.starts_with("backend: cuda, device 1 (auto"), "{line}");
        for error in lacking() {
            let said = error.to_string();
            let (backend, line) = decide(BackendArg::Auto, Err(error)).expect("the processor is always there");
            assert_eq!((backend, line), (None, format!("backend: cpu (auto: {said})")));
        }
        // A device that was named and is not there is no reason to take another.
        let error = decide(BackendArg::Auto, Err(CudaError::NoSuchDevice { wanted: 1, count: 1 })).expect_err("one");
        assert!(
            error.contains("device 1: 0 to 0 expected") && error.ends_with("--backend cpu computes on the processor")
        );
    }

    #[test]
    fn what_is_asked_for_is_had_or_missed_in_words() {
        for error in lacking() {
            let said = error.to_string();
            let message = decide(BackendArg::Cuda, Err(error)).expect_err("it is missing");
            assert_eq!(message, format!("--backend cuda: {said}; --backend cpu computes on the processor"));
        }
        assert!(decide(BackendArg::Cuda, Ok(())).expect("a device").0.is_some());
        // Nothing is looked for.
        let wish = Wish { backend: BackendArg::Cpu, device: None, threads: None, precision: Precision::Int8 };
        let looked = wish.decide::<()>(|_| panic!("no device was asked for")).expect("the processor");
        assert_eq!(looked, (None, "backend: cpu (as asked for)".into()));
    }

    #[test]
    fn kernels_of_an_earlier_start_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!has_kernels(folder.path()) && !has_kernels(&folder.path().join("none")));
        std::fs::write(folder.path().join("rows-sm_90a-00.cubin"), "").expect("written");
        assert!(has_kernels(folder.path()));
    }
}
