//! Compiles every kernel for an architecture into a folder, for machines without a compiler.
//!
//! ```sh
//! cargo run --release -p mlxcel-cuda --example precompile -- sm_90a FOLDER
//! ```

use std::path::Path;

use mlxcel_cuda::module::all_units;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [arch, folder] = arguments.as_slice() else {
        return Err("an architecture such as sm_90a and a folder expected".into());
    };
    let units = all_units();
    for (i, unit) in units.iter().enumerate() {
        let path = unit.precompile(arch, Path::new(folder))?;
        eprint!("\r{}/{} {}\x1b[K", i + 1, units.len(), path.display());
    }
    eprintln!();
    Ok(())
}
