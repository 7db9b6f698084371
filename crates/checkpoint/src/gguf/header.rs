//! The header of a GGUF file: metadata and tensor descriptions, with every check that needs no tensor data.
//!
//! A file is `GGUF`, a version, two counts, the metadata entries, the tensor descriptions, padding up to the alignment,
//! and the tensors, each at its offset from there (format: docs/gguf.md of the GGML project). Nothing in a file is
//! trusted: every count is compared with the bytes that are left before anything is reserved or looped over.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use bytes::Bytes;

use super::error::GgufError;
use super::types::{GgmlType, name_of_number};
use super::value::{Array, Kind, Value, shorten};

/// Lists of lists of … deeper than this are refused; no known key nests at all.
const MAX_DEPTH: usize = 4;

/// Alignment of tensors where the file states none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name in the file.
    pub name: String,
    /// Dimensions, slowest first, as in the Hugging Face checkpoint (a file lists them the other way round).
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub kind: GgmlType,
    /// Where its bytes lie in the file.
    pub(crate) range: Range<usize>,
}

impl GgufTensor {
    /// Elements of a row: the last dimension.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last. A vector is one row.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().saturating_sub(1)].iter().product()
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.width() / self.kind.block_elements() * self.kind.block_bytes()
    }
}

/// A checked header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The version of the format.
    pub version: u32,
    /// Every entry.
    pub metadata: Metadata,
    /// The tensors, in the order of the file.
    pub tensors: Vec<GgufTensor>,
}

/// Metadata entries by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: BTreeMap<String, Value>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An error about a key's value.
    pub(crate) fn error(&self, key: &str, expected: impl Into<String>) -> GgufError {
        let found = self.get(key).map_or("absent".into(), Value::to_string);
        GgufError::Field { key: key.into(), expected: expected.into(), found }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        self.get(key).map(|value| read(value).ok_or_else(|| self.error(key, expected))).transpose()
    }

    /// A string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A boolean.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// A finite number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a finite number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// An integer in a range.
    pub(crate) fn integer(&self, key: &str, low: usize, high: usize) -> Result<Option<usize>, GgufError> {
        self.typed(key, &format!("an integer from {low} to {high}"), |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (low..=high).contains(n))
        })
    }

    /// A list.
    pub(crate) fn list(&self, key: &str) -> Result<Option<&Array>, GgufError> {
        self.typed(key, "a list", Value::as_array)
    }
}

/// Parses and checks the header of the file that `file` holds.
pub fn parse(file: &Bytes) -> Result<Header, GgufError> {
    let mut reader = Reader { file, at: 0 };
    let version = reader.preamble()?;
    let tensor_count = reader.u64("the number of tensors")?;
    let entry_count = reader.u64("the number of metadata entries")?;

    // The shortest entry: an empty key, a kind, one byte. The shortest tensor: an empty name, one dimension.
    reader.check_count("the number of metadata entries", entry_count, 8 + 4 + 1)?;
    let mut metadata = Metadata::default();
    for index in 0..entry_count {
        let key = reader.text(|| format!("the key of metadata entry {index}"))?.to_owned();
        let what = || format!("metadata {:?}", shorten(&key));
        if key.is_empty() {
            return Err(GgufError::Metadata { what: format!("metadata entry {index}"), problem: "has no key".into() });
        }
        let kind = reader.kind(&what)?;
        let value = reader.value(kind, &what)?;
        if metadata.entries.contains_key(&key) {
            return Err(GgufError::Metadata { what: what(), problem: "is there twice, expected once".into() });
        }
        metadata.entries.insert(key, value);
    }

    reader.check_count("the number of tensors", tensor_count, 8 + 4 + 8 + 4 + 8)?;
    let mut names = HashSet::new();
    let mut described = Vec::new();
    for index in 0..tensor_count {
        let tensor = reader.tensor(index)?;
        if !names.insert(tensor.name.clone()) {
            let problem = "is described twice, expected once".into();
            return Err(GgufError::Tensor { tensor: tensor.name, problem });
        }
        described.push(tensor);
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => value
            .as_u64()
            .filter(|alignment| alignment.is_power_of_two())
            .ok_or_else(|| metadata.error("general.alignment", "a power of two"))?,
    };
    let start = (reader.at as u64).checked_next_multiple_of(alignment);
    let start = start.ok_or_else(|| metadata.error("general.alignment", "an alignment below the file's length"))?;
    let tensors = place(described, start, alignment, file.len() as u64)?;
    Ok(Header { version, metadata, tensors })
}

/// A tensor description before its place is checked.
struct Described {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    bytes: u64,
    offset: u64,
}

/// Checks that the tensors lie in the file, aligned, none over another.
fn place(described: Vec<Described>, start: u64, alignment: u64, length: u64) -> Result<Vec<GgufTensor>, GgufError> {
    let mut tensors = Vec::with_capacity(described.len());
    for tensor in described {
        let problem = |problem| GgufError::Tensor { tensor: shorten(&tensor.name), problem };
        if tensor.offset % alignment != 0 {
            return Err(problem(format!("offset {} is not a multiple of the alignment {alignment}", tensor.offset)));
        }
        let begin = start.checked_add(tensor.offset);
        let end = begin.and_then(|begin| begin.checked_add(tensor.bytes));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(problem(format!("offset {} is beyond 64 bits", tensor.offset)));
        };
        if end > length {
            return Err(GgufError::TruncatedTensor {
                tensor: shorten(&tensor.name),
                expected: tensor.bytes,
                found: length.saturating_sub(begin),
            });
        }
        // Both ends are at most the file length, which fits.
        let range = begin as usize..end as usize;
        tensors.push(GgufTensor { name: tensor.name, shape: tensor.shape, kind: tensor.kind, range });
    }
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            let problem = format!(
                "starts at byte {}, inside tensor {}, which ends at byte {}",
                pair[1].range.start,
                shorten(&pair[0].name),
                pair[0].range.end
            );
            return Err(GgufError::Tensor { tensor: shorten(&pair[1].name), problem });
        }
    }
    Ok(tensors)
}

/// A place in the file.
struct Reader<'a> {
    file: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    /// The next `length` bytes; `what` names them.
    fn take(&mut self, length: u64, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let end = (self.at as u64).saturating_add(length);
        if end > self.file.len() as u64 {
            return Err(GgufError::Truncated { what: what(), expected: end, found: self.file.len() as u64 });
        }
        let bytes = &self.file[self.at..end as usize];
        self.at = end as usize;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, &what)?;
        bytes.try_into().map_err(|_| GgufError::Metadata { what: what(), problem: "cannot be read".into() })
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(|| what.into()).map(u64::from_le_bytes)
    }

    /// A length-prefixed string.
    fn text(&mut self, what: impl Fn() -> String) -> Result<&'a str, GgufError> {
        let length = self.array(&what).map(u64::from_le_bytes)?;
        let bytes = self.take(length, &what)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::Metadata {
            what: what(),
            problem: format!("is not UTF-8: {error}, expected UTF-8 text"),
        })
    }

    /// Fails unless `count` things of at least `least` bytes each can follow.
    fn check_count(&self, what: &str, count: u64, least: usize) -> Result<(), GgufError> {
        let most = (self.left() / least) as u64;
        if count <= most { Ok(()) } else { Err(GgufError::Count { what: what.into(), count, most }) }
    }

    /// Magic and version.
    fn preamble(&mut self) -> Result<u32, GgufError> {
        if self.file.starts_with(b"version https://git-lfs") {
            return Err(GgufError::LfsPointer);
        }
        let magic: [u8; 4] = self.array(|| "the magic number".into())?;
        if &magic != b"GGUF" {
            let hint = match &magic {
                b"tjgg" | b"fmgg" | b"lmgg" => {
                    "; this is an older GGML file: convert the original model again with a current llama.cpp"
                }
                b"FUGG" => "; the bytes of every number are swapped",
                b"PK\x03\x04" => "; this looks like a PyTorch checkpoint or another zip archive",
                _ => "",
            };
            return Err(GgufError::NotGguf { found: format!("{:?}", magic.escape_ascii().to_string()), hint });
        }
        let version = self.u32(|| "the version".into())?;
        match version {
            2 | 3 => Ok(version),
            // A small number with its bytes swapped.
            other if other & 0xFFFF == 0 && other != 0 => Err(GgufError::BigEndian),
            found => Err(GgufError::Version { found }),
        }
    }

    fn kind(&mut self, what: &impl Fn() -> String) -> Result<Kind, GgufError> {
        let number = self.u32(what)?;
        Kind::from_number(number).ok_or_else(|| GgufError::Metadata {
            what: what(),
            problem: format!("has kind {number}, expected a kind from 0 to 12"),
        })
    }

    fn value(&mut self, kind: Kind, what: &impl Fn() -> String) -> Result<Value, GgufError> {
        match kind {
            Kind::Text => Ok(Value::Text(self.text(what)?.to_owned())),
            Kind::Array => {
                let kind = self.kind(what)?;
                let length = self.items_length(kind, what)?;
                let start = self.at;
                self.skip_items(kind, length, what, 1)?;
                Ok(Value::Array(Array { kind, length, items: self.file.slice(start..self.at) }))
            }
            scalar => {
                let bytes = self.take(scalar.least_bytes() as u64, what)?;
                scalar.scalar(bytes).ok_or_else(|| not_a_boolean(what(), bytes))
            }
        }
    }

    /// The length of a list, checked against the rest of the file.
    fn items_length(&mut self, kind: Kind, what: &impl Fn() -> String) -> Result<usize, GgufError> {
        let length = self.array(what).map(u64::from_le_bytes)?;
        self.check_count(&format!("the length of {}", what()), length, kind.least_bytes())?;
        Ok(length as usize)
    }

    /// Passes over the items of a list, checking each.
    fn skip_items(
        &mut self,
        kind: Kind,
        length: usize,
        what: &impl Fn() -> String,
        depth: usize,
    ) -> Result<(), GgufError> {
        match kind {
            Kind::Text => {
                for index in 0..length {
                    self.text(|| format!("item {index} of {}", what()))?;
                }
            }
            Kind::Array if depth == MAX_DEPTH => {
                let problem = format!("lists inside lists, more than {MAX_DEPTH} deep");
                return Err(GgufError::Metadata { what: what(), problem });
            }
            Kind::Array => {
                for _ in 0..length {
                    let kind = self.kind(what)?;
                    let length = self.items_length(kind, what)?;
                    self.skip_items(kind, length, what, depth + 1)?;
                }
            }
            scalar => {
                let bytes = self.take(length as u64 * scalar.least_bytes() as u64, what)?;
                if let (Kind::Bool, Some(odd)) = (scalar, bytes.iter().find(|byte| **byte > 1)) {
                    return Err(not_a_boolean(what(), &[*odd]));
                }
            }
        }
        Ok(())
    }

    fn tensor(&mut self, index: u64) -> Result<Described, GgufError> {
        let name = self.text(|| format!("the name of tensor {index}"))?.to_owned();
        let what = || format!("the description of tensor {}", shorten(&name));
        let problem = |problem: String| GgufError::Tensor { tensor: shorten(&name), problem };
        if name.is_empty() {
            let what = format!("the description of tensor {index}");
            return Err(GgufError::Metadata { what, problem: "has an empty name".into() });
        }
        let rank = self.u32(what)?;
        if !(1..=4).contains(&rank) {
            return Err(problem(format!("{rank} dimensions, expected 1 to 4")));
        }
        let mut shape = Vec::new();
        for _ in 0..rank {
            let dimension = self.array(what).map(u64::from_le_bytes)?;
            match usize::try_from(dimension) {
                Ok(dimension) if dimension > 0 => shape.push(dimension),
                _ => return Err(problem(format!("a dimension of {dimension}, expected at least 1"))),
            }
        }
        shape.reverse();
        let number = self.u32(what)?;
        let offset = self.array(what).map(u64::from_le_bytes)?;
        let Some(kind) = GgmlType::from_number(number) else {
            return Err(GgufError::Type {
                tensor: shorten(&name),
                found: name_of_number(number),
                supported: GgmlType::supported(),
            });
        };
        let width = shape.last().copied().unwrap_or(1);
        if !width.is_multiple_of(kind.block_elements()) {
            let (name, block) = (kind.name(), kind.block_elements());
            return Err(problem(format!("rows of {width} elements, expected a multiple of {block} for {name}")));
        }
        let elements = shape.iter().try_fold(1u64, |product, dimension| product.checked_mul(*dimension as u64));
        let bytes = elements
            .and_then(|elements| (elements / kind.block_elements() as u64).checked_mul(kind.block_bytes() as u64));
        let Some(bytes) = bytes else {
            return Err(problem(format!("shape {shape:?} has more bytes than fit 64 bits")));
        };
        Ok(Described { name, shape, kind, bytes, offset })
    }
}

fn not_a_boolean(what: String, bytes: &[u8]) -> GgufError {
    GgufError::Metadata { what, problem: format!("is a boolean of {bytes:?}, expected 0 or 1") }
}
