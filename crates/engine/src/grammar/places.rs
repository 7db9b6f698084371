//! How many grammars are compiled at once: one that nobody waits for any more still works until it comes to its end.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A number of places to work in.
pub(super) struct Places {
    free: Mutex<usize>,
    left: Condvar,
}

/// A place, free again once dropped.
pub(super) struct Place(&'static Places);

impl Places {
    pub(super) const fn new(count: usize) -> Self {
        Places { free: Mutex::new(count), left: Condvar::new() }
    }

    /// Waits for a place; `None` when none was free in time.
    pub(super) fn take(&'static self, most: Duration) -> Option<Place> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.left.wait_timeout_while(free, most, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Place(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_and_left() {
        static PLACES: Places = Places::new(2);
        let take = |millis| PLACES.take(Duration::from_millis(millis));
        let (one, two) = (take(0).expect("free"), take(0).expect("free"));
        assert!(take(20).is_none(), "both are taken");
        std::thread::scope(|scope| {
            // Whoever waits gets the place that is left.
            let third = scope.spawn(|| take(10_000).is_some());
            drop(one);
            assert!(third.join().expect("no panic"));
        });
        drop(two);
        assert!(take(0).is_some() && take(0).is_some());
    }
}
