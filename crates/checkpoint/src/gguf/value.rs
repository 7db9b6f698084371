//! Metadata values.

use std::fmt;

use bytes::Bytes;

/// A metadata value. Widths of integers are not kept: files of different converters disagree about them.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Single precision.
    Float32(f32),
    /// Double precision.
    Float64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list of values of one kind.
    Array(Array),
}

impl Value {
    /// A non-negative integer of any kind.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A number of any kind. A single has the shortest decimal that gives it back, so that 1e-5 is not
    /// 0.000009999999747378752.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Unsigned(value) => Some(*value as f64),
            Self::Signed(value) => Some(*value as f64),
            Self::Float32(value) => Some(widen(*value)),
            Self::Float64(value) => Some(*value),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(value) => Some(value),
            _ => None,
        }
    }

    /// A list.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(value) => Some(value),
            _ => None,
        }
    }
}

/// A single as the double that has the same shortest decimal.
fn widen(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

/// As shown in messages: cut to a readable length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Float32(value) => value.fmt(f),
            Self::Float64(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Text(value) => write!(f, "{:?}", shorten(value)),
            Self::Array(array) => write!(f, "a list of {} {}", array.length, array.kind.plural()),
        }
    }
}

/// The beginning of a text that may be long.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.into(),
    }
}

/// Kind of the items of an array; the numbers are those of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of a value, the fewest where they vary.
    pub(crate) fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::Array => 12,
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Text => "strings",
            Self::Bool => "booleans",
            Self::F32 | Self::F64 => "numbers",
            Self::Array => "lists",
            _ => "integers",
        }
    }

    /// The value of `bytes`, of exactly [`least_bytes`](Self::least_bytes) bytes; `None` for kinds that are not scalars
    /// and for a boolean that is neither 0 nor 1.
    pub(crate) fn scalar(self, bytes: &[u8]) -> Option<Value> {
        Some(match self {
            Self::U8 => Value::Unsigned(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I8 => Value::Signed(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::U16 => Value::Unsigned(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I16 => Value::Signed(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::U32 => Value::Unsigned(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::I32 => Value::Signed(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::F32 => Value::Float32(f32::from_le_bytes(bytes.try_into().ok()?)),
            Self::U64 => Value::Unsigned(u64::from_le_bytes(bytes.try_into().ok()?)),
            Self::I64 => Value::Signed(i64::from_le_bytes(bytes.try_into().ok()?)),
            Self::F64 => Value::Float64(f64::from_le_bytes(bytes.try_into().ok()?)),
            Self::Bool => match bytes {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return None,
            },
            Self::Text | Self::Array => return None,
        })
    }
}

/// A list of values of one kind, as it lies in the file: a vocabulary is not copied to be looked at.
#[derive(Clone, PartialEq)]
pub struct Array {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    /// The items, already checked.
    pub(crate) items: Bytes,
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}; {}]", self.kind, self.length)
    }
}

impl Array {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The items of a list of strings.
    pub fn texts(&self) -> Option<impl Iterator<Item = &str>> {
        (self.kind == Kind::Text).then(|| {
            let mut rest = &self.items[..];
            std::iter::from_fn(move || {
                let (length, tail) = rest.split_first_chunk::<8>()?;
                let (text, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
                rest = tail;
                std::str::from_utf8(text).ok()
            })
        })
    }

    /// The items of a list of numbers or booleans.
    pub fn scalars(&self) -> Option<impl Iterator<Item = Value>> {
        let kind = self.kind;
        (!matches!(kind, Kind::Text | Kind::Array))
            .then(|| self.items.chunks_exact(kind.least_bytes()).filter_map(move |bytes| kind.scalar(bytes)))
    }
}
