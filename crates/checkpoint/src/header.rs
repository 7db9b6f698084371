//! The header of a safetensors file: parsing and every check that needs no tensor data.
//!
//! A file is an 8-byte little-endian length, that many bytes of JSON, and the tensors back to back. Headers come from
//! downloads, so nothing in one is trusted: what is allocated is bounded by the bytes present, every product and sum is
//! checked, and the ranges must tile the data exactly (no overlap, no gap, no bytes missing or left over).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use ::safetensors::Dtype;
use mlxcel_compute::format::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// Longest header accepted, the limit of the reference implementation.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most dimensions a tensor may have.
const MAX_RANK: usize = 16;

/// What can be wrong with a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not even the length field.
    #[error("truncated safetensors file: expected at least 8 bytes, found {found}; download again")]
    TooShort {
        /// Bytes in the file.
        found: u64,
    },
    /// A pointer that `git lfs` never replaced.
    #[error("this is a Git LFS pointer, not the weights themselves; fetch the file with git lfs or download again")]
    LfsPointer,
    /// A header length beyond [`MAX_HEADER_BYTES`]: not a safetensors file, or a damaged one.
    #[error("not a safetensors file: header length {found}, expected at most {MAX_HEADER_BYTES}; download again")]
    HeaderTooLong {
        /// The length field.
        found: u64,
    },
    /// Fewer bytes than the header promises.
    #[error("truncated safetensors file: expected {expected} bytes, found {found}; download again")]
    Truncated {
        /// Bytes the file must have (at least, when the header itself is cut).
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// More bytes than the header accounts for.
    #[error("safetensors file of {found} bytes, expected {expected} by its header; download again")]
    Trailing {
        /// Bytes the file must have.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The header is not the JSON it must be.
    #[error("bad safetensors header: {0}")]
    Json(String),
    /// An entry of the header contradicts itself or another.
    #[error("bad safetensors header: tensor {tensor}: {problem}")]
    Entry {
        /// The tensor.
        tensor: String,
        /// Expected and found.
        problem: String,
    },
}

/// Element type as the file names it; only some can be handed out as a [`DType`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredDType {
    /// A type the engine reads.
    Supported(DType),
    /// Any other: an error only for who asks for the tensor.
    Other(String),
}

impl StoredDType {
    fn new(name: String) -> Self {
        match name.as_str() {
            "F32" => Self::Supported(DType::F32),
            "BF16" => Self::Supported(DType::Bf16),
            "F16" => Self::Supported(DType::F16),
            "U8" => Self::Supported(DType::U8),
            "U32" => Self::Supported(DType::U32),
            "I32" => Self::Supported(DType::I32),
            "I64" => Self::Supported(DType::I64),
            _ => Self::Other(name),
        }
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Supported(dtype) => dtype.name(),
            Self::Other(name) => name,
        }
    }

    /// Bits of one element, when known.
    pub fn bits(&self) -> Option<usize> {
        match self {
            Self::Supported(dtype) => Some(dtype.size() * 8),
            Self::Other(name) => {
                let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
                Dtype::deserialize(name).ok().map(|dtype| dtype.bitsize())
            }
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: StoredDType,
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Its bytes, as offsets from the beginning of the file.
    pub range: Range<usize>,
}

/// A checked header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub entries: Vec<Entry>,
    /// The string values of `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// Parses and checks the header of a whole file. Reads only the header's own bytes.
pub fn parse_header(file: &[u8]) -> Result<Header, HeaderError> {
    let found = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(HeaderError::TooShort { found });
    };
    if file.starts_with(b"version https://git-lfs") {
        return Err(HeaderError::LfsPointer);
    }
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(HeaderError::HeaderTooLong { found: length });
    }
    // Cannot truncate: at most MAX_HEADER_BYTES.
    let json = rest.get(..length as usize).ok_or(HeaderError::Truncated { expected: 8 + length, found })?;
    if json.first() != Some(&b'{') {
        return Err(HeaderError::Json("expected it to begin with '{'".into()));
    }
    let raw: RawHeader = serde_json::from_slice(json).map_err(|error| HeaderError::Json(error.to_string()))?;

    let data_start = 8 + length as usize;
    let data_length = (file.len() - data_start) as u64;
    let mut tensors = raw.tensors;
    tensors.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
    let entry_error = |tensor: &str, problem| HeaderError::Entry { tensor: tensor.into(), problem };

    // The end of the last tensor first: a cut file is by far the commonest damage and deserves its own words.
    let end = tensors.iter().map(|(_, raw)| raw.data_offsets.1).max().unwrap_or(0);
    if end > data_length {
        return Err(HeaderError::Truncated { expected: end.saturating_add(data_start as u64), found });
    }
    let mut entries = Vec::with_capacity(tensors.len());
    let mut previous_end = 0;
    for (name, raw) in tensors {
        let (start, end) = raw.data_offsets;
        if end < start {
            return Err(entry_error(&name, format!("data_offsets [{start}, {end}] run backwards")));
        }
        if start != previous_end {
            let what = if start < previous_end { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err(entry_error(&name, format!("starts at {start}, expected {previous_end}: it {what}")));
        }
        previous_end = end;
        let dtype = StoredDType::new(raw.dtype);
        if raw.shape.len() > MAX_RANK {
            return Err(entry_error(&name, format!("{} dimensions, expected at most {MAX_RANK}", raw.shape.len())));
        }
        let mut elements = Some(1u64);
        let mut shape = Vec::with_capacity(raw.shape.len());
        for &dim in &raw.shape {
            elements = elements.and_then(|product| product.checked_mul(dim.max(1)));
            shape.push(usize::try_from(dim).map_err(|_| entry_error(&name, format!("dimension {dim} is too large")))?);
        }
        // A dimension of 0 must not hide an overflowing product of the others from later arithmetic.
        let Some(elements) = elements else {
            return Err(entry_error(&name, format!("shape {:?} has more elements than fit 64 bits", raw.shape)));
        };
        let elements = if raw.shape.contains(&0) { 0 } else { elements };
        if let Some(bits) = dtype.bits() {
            let expected = elements.checked_mul(bits as u64).map(|bits| bits.div_ceil(8));
            if expected != Some(end - start) {
                let expected = expected.map_or("more".into(), |bytes| bytes.to_string());
                let found = end - start;
                let problem =
                    format!("{} of shape {shape:?} takes {expected} bytes, data_offsets give {found}", dtype.name());
                return Err(entry_error(&name, problem));
            }
        }
        // Both ends are at most the file length.
        let range = data_start + start as usize..data_start + end as usize;
        entries.push(Entry { name, dtype, shape, range });
    }
    if previous_end < data_length {
        return Err(HeaderError::Trailing { expected: data_start as u64 + previous_end, found });
    }
    Ok(Header { entries, metadata: raw.metadata })
}

/// The header as JSON gives it.
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { tensors: Vec::new(), metadata: BTreeMap::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata =
                            map.next_value::<Option<Strings>>()?.map(|strings| strings.0).unwrap_or_default();
                        continue;
                    }
                    let entry = map
                        .next_value::<RawEntry>()
                        .map_err(|error| A::Error::custom(format!("tensor {name}: {error}")))?;
                    header.tensors.push((name, entry));
                }
                // A map would have kept the last of two equal names without a word.
                let mut names: Vec<&str> = header.tensors.iter().map(|(name, _)| name.as_str()).collect();
                names.sort_unstable();
                if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(A::Error::custom(format!("tensor {} is listed twice", pair[0])));
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The string values of an object; others are skipped, since metadata decides nothing.
struct Strings(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Text(String),
            Other(IgnoredAny),
        }
        let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
        Ok(Self(
            values
                .into_iter()
                .filter_map(|(key, value)| match value {
                    Value::Text(text) => Some((key, text)),
                    Value::Other(_) => None,
                })
                .collect(),
        ))
    }
}
