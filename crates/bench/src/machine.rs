//! What a row says about where and when it was measured.

use std::time::SystemTime;

use mlxcel_checkpoint::store::rfc3339;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from: what `MLXCEL_COMMIT` said at build time, else what git did. `None` in a build without both. A
/// build of changed files has the commit they were changed from.
pub const COMMIT: Option<&str> = option_env!("MLXCEL_BUILD_COMMIT");

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor.
    pub device: String,
    /// Its cores that this process can use.
    pub cores: Option<usize>,
    /// Bytes of main memory.
    pub memory_bytes: Option<u64>,
    /// Operating system and version.
    pub os: String,
    /// Architecture.
    pub arch: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        // What of it the system does not tell is left out; no report fails for it.
        let what = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
        let system = System::new_with_specifics(what).ok();
        let brand = system.as_ref().and_then(|s| s.cpus().first().map(|cpu| clean(cpu.brand())));
        let memory = System::new().ok().map(|mut system| {
            system.refresh_memory();
            system.total_memory()
        });
        Self {
            device: brand
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH)),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: memory.filter(|bytes| *bytes > 0),
            os: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.into()),
            arch: std::env::consts::ARCH.into(),
        }
    }
}

/// A name without the padding and the marks that makers put into it.
fn clean(name: &str) -> String {
    let name = name.replace("(R)", "").replace("(TM)", "").replace("(tm)", "");
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The day, UTC, `YYYY-MM-DD`.
pub fn date(time: SystemTime) -> String {
    let text = rfc3339(time);
    text.split_once('T').map_or(text.clone(), |(day, _)| day.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_are_days() {
        let at = |seconds| date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01");
        assert_eq!(at(951_782_399), "2000-02-28");
        assert_eq!(at(951_782_400), "2000-02-29", "a leap day, from its first second");
        assert_eq!(at(951_868_800), "2000-03-01");
        assert_eq!(at(4_107_542_400), "2100-03-01");
        let today = date(SystemTime::now());
        assert!(today.len() == 10 && today.as_str() > "2024-01-01", "{today}");
    }

    #[test]
    fn the_machine_has_a_name() {
        let machine = Machine::here();
        assert!(!machine.device.is_empty() && !machine.os.is_empty() && !machine.arch.is_empty());
        assert!(machine.cores > Some(0));
        assert_eq!(clean("  Intel(R) Xeon(R)  CPU @ 2.0GHz "), "Intel Xeon CPU @ 2.0GHz");
        if cfg!(target_os = "linux") && std::path::Path::new("/proc/cpuinfo").exists() {
            let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").expect("cpuinfo");
            if let Some((_, model)) =
                cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(k, _)| k.trim() == "model name")
            {
                assert_eq!(machine.device, clean(model));
            }
        }
    }

    #[test]
    fn the_commit_is_one() {
        if let Some(commit) = COMMIT {
            assert!(commit.len() >= 7 && commit.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{commit}");
        }
    }
}
