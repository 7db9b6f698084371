//! Compiles every kernel for an architecture into a folder, for machines without a compiler.
//!
//! ```sh
//! cargo run --release -p mlxcel-cuda --example precompile -- sm_90a FOLDER
//! ```

use std::path::Path;
use std::sync::Mutex;

use mlxcel_cuda::module::all_units;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [arch, folder] = arguments.as_slice() else {
        return Err("an architecture such as sm_90a and a folder expected".into());
    };
    let units = all_units();
    let (todo, fault) = (Mutex::new(units.iter().enumerate()), Mutex::new(None));
    let work = || {
        while let Some((i, unit)) = todo.lock().ok().and_then(|mut todo| todo.next()) {
            match unit.precompile(arch, Path::new(folder)) {
                Ok(path) => eprint!("\r{}/{} {}\x1b[K", i + 1, units.len(), path.display()),
                Err(error) => drop(fault.lock().map(|mut first| first.get_or_insert(error).to_string())),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    eprintln!();
    fault.into_inner()?.map_or(Ok(()), |error| Err(error.into()))
}
