//! Storage types of tensors.

/// How the elements of a tensor are stored. Quantised types store blocks of consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgmlType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 32 codes of 4 bits, a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits, a scale.
    Q5_0,
    /// 32 codes of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 codes of 8 bits, a scale.
    Q8_0,
    /// 256 codes of 4 bits; scales and minima of 32 of them as 6-bit multiples of two halves.
    Q4K,
    /// 256 codes of 5 bits; scales and minima as in [`Q4K`](Self::Q4K).
    Q5K,
    /// 256 codes of 6 bits; scales of 16 of them as 8-bit multiples of a half.
    Q6K,
}

impl GgmlType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Bf16,
    ];

    /// The number in a file.
    pub fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// The type of a number, if it is one of these.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The name in GGML.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Elements of a block; the length of a row is a multiple of it.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Names of all types, for messages.
    pub(crate) fn supported() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// What to call any type number in a message.
pub(crate) fn name_of_number(number: u32) -> String {
    if let Some(kind) = GgmlType::from_number(number) {
        return kind.name().into();
    }
    let name = match number {
        4 => "Q4_2 (removed from GGML)",
        5 => "Q4_3 (removed from GGML)",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed from GGML)",
        32 => "Q4_0_4_8 (removed from GGML)",
        33 => "Q4_0_8_8 (removed from GGML)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return format!("number {number}"),
    };
    name.into()
}
