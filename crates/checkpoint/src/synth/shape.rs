//! Sizes of published models, as data.

/// Sizes of a model, and of its drafter.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// K/V heads (Gemma 4: of sliding layers).
    pub kv_heads: usize,
    /// Values of a head (Gemma 4: of sliding layers).
    pub head_dim: usize,
    /// Width of the dense MLP; 0 = none.
    pub inner: usize,
    /// The mixture of experts.
    pub experts: Option<Experts>,
    /// Positions of a context.
    pub context: usize,
    /// What only its family has.
    pub family: Family,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts a row goes through.
    pub used: usize,
    /// Width of an expert.
    pub inner: usize,
}

/// A family, and the sizes that only it has.
#[derive(Clone, Copy, Debug)]
pub enum Family {
    /// Gemma 4.
    Gemma4(Gemma4),
    /// Qwen 3.5, 3.6 and 3.8.
    Qwen3_5(Qwen3_5),
    /// Llama 3.
    Llama,
}

/// What only Gemma 4 has.
#[derive(Clone, Copy, Debug)]
pub struct Gemma4 {
    /// Whether it is of the kind without towers (12B).
    pub unified: bool,
    /// K/V heads of full layers whose values are their keys; `None` = full layers are like the others.
    pub global_kv_heads: Option<usize>,
    /// Values of a full layer's head.
    pub global_head_dim: usize,
    /// Keys a sliding layer sees.
    pub window: usize,
    /// Its drafter.
    pub drafter: Assistant,
}

/// Sizes of a Gemma 4 drafter.
#[derive(Clone, Copy, Debug)]
pub struct Assistant {
    /// Width of its residual stream.
    pub hidden: usize,
    /// Width of its MLPs.
    pub inner: usize,
    /// Query heads.
    pub heads: usize,
    /// Clusters of its head; `None` = it scores all tokens.
    pub centroids: Option<usize>,
}

/// What only Qwen 3.5 has.
#[derive(Clone, Copy, Debug)]
pub struct Qwen3_5 {
    /// Key heads of recurrent layers.
    pub key_heads: usize,
    /// Value heads of recurrent layers.
    pub value_heads: usize,
    /// Values of a key head and of a value head.
    pub state_dim: usize,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
}

const fn large(heads: usize) -> Assistant {
    Assistant { hidden: 1024, inner: 8192, heads, centroids: None }
}

const fn gemma4(global_kv_heads: usize, unified: bool, drafter: Assistant) -> Family {
    Family::Gemma4(Gemma4 {
        unified,
        global_kv_heads: Some(global_kv_heads),
        global_head_dim: 512,
        window: 1024,
        drafter,
    })
}

const fn qwen3_5(value_heads: usize, tied: bool) -> Family {
    Family::Qwen3_5(Qwen3_5 { key_heads: 16, value_heads, state_dim: 128, tied })
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 8] = [
        Shape {
            name: "gemma-4-31b",
            about: "Gemma 4 31B, dense, with its 4-layer drafter",
            vocab: 262_144,
            hidden: 5376,
            layers: 60,
            heads: 32,
            kv_heads: 16,
            head_dim: 256,
            inner: 21_504,
            experts: None,
            context: 262_144,
            family: gemma4(4, false, large(32)),
        },
        Shape {
            name: "gemma-4-12b",
            about: "Gemma 4 12B (unified), dense, with its 4-layer drafter",
            vocab: 262_144,
            hidden: 3840,
            layers: 48,
            heads: 16,
            kv_heads: 8,
            head_dim: 256,
            inner: 15_360,
            experts: None,
            context: 262_144,
            family: gemma4(1, true, large(16)),
        },
        Shape {
            name: "gemma-4-26b-a4b",
            about: "Gemma 4 26B-A4B, 128 experts beside a dense MLP, with its 4-layer drafter",
            vocab: 262_144,
            hidden: 2816,
            layers: 30,
            heads: 16,
            kv_heads: 8,
            head_dim: 256,
            inner: 2112,
            experts: Some(Experts { count: 128, used: 8, inner: 704 }),
            context: 262_144,
            family: gemma4(2, false, large(16)),
        },
        Shape {
            name: "gemma-4-1b",
            about: "no published size: E2B's widths, dense, 18 layers, with a drafter that has E2B's centroid head",
            vocab: 262_144,
            hidden: 1536,
            layers: 18,
            heads: 8,
            kv_heads: 1,
            head_dim: 256,
            inner: 6144,
            experts: None,
            context: 131_072,
            family: Family::Gemma4(Gemma4 {
                unified: false,
                global_kv_heads: None,
                global_head_dim: 512,
                window: 512,
                drafter: Assistant { hidden: 256, inner: 2048, heads: 4, centroids: Some(2048) },
            }),
        },
        Shape {
            name: "qwen3.8-27b",
            about: "Qwen 3.8 27B (3.5 and 3.6 alike), dense, with its drafting head",
            vocab: 248_320,
            hidden: 5120,
            layers: 64,
            heads: 24,
            kv_heads: 4,
            head_dim: 256,
            inner: 17_408,
            experts: None,
            context: 262_144,
            family: qwen3_5(48, false),
        },
        Shape {
            name: "qwen3.5-35b-a3b",
            about: "Qwen 3.5 35B-A3B, 256 experts, with its drafting head",
            vocab: 248_320,
            hidden: 2048,
            layers: 40,
            heads: 16,
            kv_heads: 2,
            head_dim: 256,
            inner: 0,
            experts: Some(Experts { count: 256, used: 8, inner: 512 }),
            context: 262_144,
            family: qwen3_5(32, false),
        },
        Shape {
            name: "qwen3.5-0.8b",
            about: "Qwen 3.5 0.8B, dense, with its drafting head",
            vocab: 248_320,
            hidden: 1024,
            layers: 24,
            heads: 8,
            kv_heads: 2,
            head_dim: 256,
            inner: 3584,
            experts: None,
            context: 262_144,
            family: qwen3_5(16, true),
        },
        Shape {
            name: "llama-1b",
            about: "Llama 3.2 1B; no drafter",
            vocab: 128_256,
            hidden: 2048,
            layers: 16,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            inner: 8192,
            experts: None,
            context: 131_072,
            family: Family::Llama,
        },
    ];

    /// The shape of a name.
    pub fn named(name: &str) -> Option<Shape> {
        Self::ALL.into_iter().find(|shape| shape.name == name)
    }

    /// The demo checkpoint in `models/` whose tokenizer and chat template serve it.
    pub const fn demo(&self) -> &'static str {
        match self.family {
            Family::Gemma4(_) => "gemma-4-tiny-it-4bit",
            // Llama 3's tokenizer is of the same kind.
            Family::Qwen3_5(_) | Family::Llama => "qwen3.5-tiny-4bit",
        }
    }

    /// What the drafter's directory is called after the model's; `None` = there is no drafter.
    pub const fn drafter_suffix(&self) -> Option<&'static str> {
        match self.family {
            Family::Gemma4(_) => Some("-assistant"),
            Family::Qwen3_5(_) => Some("-mtp"),
            Family::Llama => None,
        }
    }

    /// The same tensors by name and number of dimensions, an eighth or a sixteenth as wide: for tests that run every shape.
    #[doc(hidden)]
    pub fn shrunk(&self) -> Shape {
        let narrow = |width: usize| (width / 16).next_multiple_of(64);
        let mut family = self.family;
        match &mut family {
            Family::Gemma4(own) => {
                own.global_head_dim /= 8;
                own.window /= 8;
                (own.drafter.hidden, own.drafter.inner) = (narrow(own.drafter.hidden), narrow(own.drafter.inner));
                own.drafter.centroids = own.drafter.centroids.map(|_| 512);
            }
            Family::Qwen3_5(own) => own.state_dim /= 8,
            Family::Llama => {}
        }
        Shape {
            // A multiple of the centroids, and more than a tokenizer of 16384 ids has.
            vocab: 18_432,
            hidden: narrow(self.hidden),
            head_dim: self.head_dim / 8,
            inner: narrow(self.inner),
            experts: self.experts.map(|experts| Experts { inner: narrow(experts.inner), ..experts }),
            context: 4096,
            family,
            ..self.clone()
        }
    }
}
