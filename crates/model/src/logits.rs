//! [`Logits`]: what a forward pass came to, brought from the device as far as somebody asks.
//!
//! A greedy choice needs one index a row; a vocabulary's values weigh a mebibyte, and fetching them can take longer than another row
//! of the forward pass. The index of the largest is found where the values lie, and tells of damage as well; the values
//! follow row by row, on demand.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use mlxcel_compute::{Backend, order};

use crate::ModelError;
use crate::error::intact;

/// Logits of the wanted rows of a forward pass.
pub struct Logits {
    source: Box<dyn Fetch + Send>,
    argmax: Vec<Option<u32>>,
    rows: Vec<OnceCell<Vec<f32>>>,
    vocab: usize,
}

/// Where the values are.
trait Fetch {
    /// Values of some rows, row-major.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    fn fetch(&self, rows: Range<usize>) -> Result<Vec<f32>, ModelError>;
}

/// With a backend.
struct There<B: Backend> {
    backend: Arc<B>,
    buffer: B::Buffer,
}

impl<B: Backend> Fetch for There<B> {
    fn fetch(&self, rows: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let values = self.backend.read_rows(&self.buffer, rows);
        intact(&*self.backend)?;
        Ok(values)
    }
}

/// In memory.
struct Here {
    values: Vec<f32>,
    vocab: usize,
}

impl Fetch for Here {
    fn fetch(&self, rows: Range<usize>) -> Result<Vec<f32>, ModelError> {
        Ok(self.values[rows.start * self.vocab..rows.end * self.vocab].to_vec())
    }
}

impl Logits {
    /// Logits `[rows, vocab]` that a backend has computed. Waits until they are there.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn new<B: Backend>(backend: &Arc<B>, buffer: B::Buffer) -> Result<Self, ModelError> {
        let (argmax, (_, vocab)) = (backend.argmax(&buffer), backend.shape(&buffer));
        intact(&**backend)?;
        Ok(Self::of(Box::new(There { backend: Arc::clone(backend), buffer }), argmax, vocab))
    }

    /// Logits `[rows, vocab]` as numbers.
    pub fn from_values(values: Vec<f32>, vocab: usize) -> Self {
        let argmax = values.chunks_exact(vocab).map(order::argmax).collect();
        Self::of(Box::new(Here { values, vocab }), argmax, vocab)
    }

    fn of(source: Box<dyn Fetch + Send>, argmax: Vec<Option<u32>>, vocab: usize) -> Self {
        let rows = argmax.iter().map(|_| OnceCell::new()).collect();
        Logits { source, argmax, rows, vocab }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.argmax.len()
    }

    /// Logits of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The token of a row's largest logit, the lowest among equals; `None` when one of its logits is not finite.
    pub fn argmax(&self, row: usize) -> Option<u32> {
        self.argmax[row]
    }

    /// The first row with a logit that is not finite.
    pub fn damaged(&self) -> Option<usize> {
        self.argmax.iter().position(Option::is_none)
    }

    /// A row's values, fetched when first asked for.
    ///
    /// # Errors
    /// [`ModelError::Device`]: what came of the device is no row.
    pub fn row(&self, row: usize) -> Result<&[f32], ModelError> {
        let cell = &self.rows[row];
        if let Some(values) = cell.get() {
            return Ok(values);
        }
        let values = self.source.fetch(row..row + 1)?;
        Ok(cell.get_or_init(|| values))
    }

    /// All values, row-major.
    ///
    /// # Errors
    /// As [`Logits::row`].
    pub fn into_values(self) -> Result<Vec<f32>, ModelError> {
        self.source.fetch(0..self.rows())
    }
}

impl std::fmt::Debug for Logits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logits").field("argmax", &self.argmax).field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_compute::fault::{Fault, Faulty};
    use mlxcel_compute::reference::Reference;

    use super::*;

    const VALUES: [f32; 9] = [0.5, 2.0, 2.0, -0.0, 0.0, -1.0, 1.0, f32::NEG_INFINITY, 0.0];

    fn on<B: Backend>(backend: B) -> Result<Logits, ModelError> {
        let backend = Arc::new(backend);
        let mut buffer = backend.buffer(3, 3);
        backend.write(&mut buffer, &VALUES);
        Logits::new(&backend, buffer)
    }

    #[test]
    fn rows_are_the_same_here_and_there() {
        for logits in [Logits::from_values(VALUES.to_vec(), 3), on(Reference).expect("no device to fail")] {
            assert_eq!((logits.rows(), logits.vocab(), logits.damaged()), (3, 3, Some(2)));
            assert_eq!([0, 1, 2].map(|row| logits.argmax(row)), [Some(1), Some(0), None]);
            for row in [1, 2, 0, 1] {
                assert_eq!(logits.row(row).expect("a row"), &VALUES[3 * row..][..3]);
            }
            assert_eq!(logits.into_values().expect("values"), VALUES);
        }
    }

    #[test]
    fn nothing_is_made_of_what_a_lost_device_gives() {
        let lost = |result: Result<&[f32], ModelError>| matches!(result, Err(ModelError::Device { .. }));
        assert!(matches!(on(Faulty::new(Reference, Fault::DeviceLost(0))), Err(ModelError::Device { .. })));
        // The indices came over, one row as well, the other did not.
        let logits = on(Faulty::new(Reference, Fault::DeviceLost(2))).expect("still there");
        assert_eq!(logits.row(1).expect("the last that was read"), &VALUES[3..6]);
        assert!(lost(logits.row(0)) && lost(logits.row(0)));
        assert_eq!(logits.row(1).expect("it is here"), &VALUES[3..6]);
        assert!(matches!(logits.into_values(), Err(ModelError::Device { .. })));
    }
}
