//! Looking inside a forward pass: goldens compare hidden states, the exactness probe finds the first differing
//! operation, the NaN detector the first damaged layer. Costs nothing when nobody looks.

/// A point of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Layer index, `None` outside the layers.
    pub layer: Option<usize>,
    /// Which value.
    pub op: &'static str,
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer}, {}", self.op),
            None => f.write_str(self.op),
        }
    }
}

/// Sees intermediates in the order they are computed.
pub trait Tap {
    /// `values` is `[rows, width]`, row-major.
    fn see(&mut self, site: Site, values: &[f32]);
}

/// Shows a buffer to the tap, if there is one. What each verb writes is shown where it is written, so that a first difference
/// names the verb: a buffer that is worked on in place is shown each time, under its own name.
pub fn show<B: mlxcel_compute::Backend>(
    tap: &mut Option<&mut dyn Tap>,
    backend: &B,
    layer: Option<usize>,
    op: &'static str,
    buffer: &B::Buffer,
) {
    if let Some(tap) = tap {
        tap.see(Site { layer, op }, &backend.read(buffer));
    }
}

/// Remembers the first site with a non-finite value.
#[derive(Debug, Default)]
pub struct FirstNonFinite {
    /// Where it was.
    pub site: Option<Site>,
}

impl Tap for FirstNonFinite {
    fn see(&mut self, site: Site, values: &[f32]) {
        if self.site.is_none() && values.iter().any(|v| !v.is_finite()) {
            self.site = Some(site);
        }
    }
}

/// Keeps everything it sees.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Sites and values in order.
    pub seen: Vec<(Site, Vec<f32>)>,
}

impl Recorder {
    /// The last value seen at a site.
    pub fn at(&self, layer: Option<usize>, op: &str) -> Option<&[f32]> {
        self.seen.iter().rev().find(|(s, _)| s.layer == layer && s.op == op).map(|(_, v)| v.as_slice())
    }
}

impl Tap for Recorder {
    fn see(&mut self, site: Site, values: &[f32]) {
        self.seen.push((site, values.to_vec()));
    }
}
