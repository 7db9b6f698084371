//! The pairings that gate, bench and docs share: which drafter goes with which target, and what they are called on the hub.

mod places;
mod variant;

pub use places::{Absent, Places};
pub use variant::{TargetError, Variant};

use std::path::PathBuf;
use std::str::FromStr;

use mlxcel_model::drafters::DraftKind;

use crate::report::table::{Align, Table};

/// How a row drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Not at all: plain decoding.
    None,
    /// A head trained on the target's hidden states.
    Mtp,
    /// A block-diffusion drafter.
    Dflash,
    /// A small model with the target's vocabulary.
    Classic,
    /// Prompt lookup.
    Ngram,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::None, Self::Mtp, Self::Dflash, Self::Classic, Self::Ngram];

    /// The name in flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mtp => "mtp",
            Self::Dflash => "dflash",
            Self::Classic => "classic",
            Self::Ngram => "ngram",
        }
    }

    /// Whether it needs a checkpoint of its own (a target that holds its head counts as one).
    pub const fn needs_checkpoint(self) -> bool {
        matches!(self, Self::Mtp | Self::Dflash | Self::Classic)
    }

    /// The engine's kind; `None` where nothing is drafted, or where this version has no such drafter.
    pub const fn draft_kind(self) -> Option<DraftKind> {
        match self {
            Self::Mtp => Some(DraftKind::Mtp),
            Self::Classic => Some(DraftKind::Classic),
            Self::Ngram => Some(DraftKind::Ngram),
            Self::None | Self::Dflash => None,
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("kind: expected one of {names}, found {text:?}")
        })
    }
}

/// A target with a drafter. Its baseline is the target alone at K = 1, which every measurement of it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Name in reports and flags.
    pub name: &'static str,
    /// The target: a repository on the hub, or a directory of models/.
    pub target: &'static str,
    /// The drafter, likewise.
    pub drafter: &'static str,
    /// How it drafts.
    pub kind: Kind,
    /// What the target is loaded as.
    pub variant: Variant,
    /// Block width the drafter's config.json asks for.
    pub block_size: usize,
    /// Whether both checkpoints come with the project.
    pub embedded: bool,
    /// Repository names that were not confirmed to exist as they are written here.
    pub unverified: &'static [&'static str],
}

/// All pairings; the embedded ones first, then by family.
pub const PAIRINGS: [Pairing; 11] = [
    Pairing {
        name: "gemma-4-tiny-4bit",
        target: "gemma-4-tiny-it-4bit",
        drafter: "gemma-4-tiny-it-assistant-4bit",
        kind: Kind::Mtp,
        variant: Variant::Gemma4,
        block_size: 4,
        embedded: true,
        unverified: &[],
    },
    Pairing {
        name: "gemma-4-tiny-bf16",
        target: "gemma-4-tiny-it-4bit",
        drafter: "gemma-4-tiny-it-assistant-bf16",
        kind: Kind::Mtp,
        variant: Variant::Gemma4,
        block_size: 4,
        embedded: true,
        unverified: &[],
    },
    Pairing {
        name: "qwen3.5-tiny-4bit",
        target: "qwen3.5-tiny-4bit",
        drafter: "qwen3.5-tiny-mtp-4bit",
        kind: Kind::Mtp,
        variant: Variant::Qwen35,
        block_size: 4,
        embedded: true,
        unverified: &[],
    },
    Pairing {
        name: "gemma-4-31b-bf16",
        target: "mlx-community/gemma-4-31b-it-4bit",
        drafter: "mlx-community/gemma-4-31B-it-assistant-bf16",
        kind: Kind::Mtp,
        variant: Variant::Gemma4Vlm,
        block_size: 4,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "gemma-4-12b-4bit",
        target: "mlx-community/gemma-4-12B-it-4bit",
        drafter: "mlx-community/gemma-4-12B-it-assistant-4bit",
        kind: Kind::Mtp,
        variant: Variant::Gemma4Unified,
        block_size: 4,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "gemma-4-26b-a4b-bf16",
        target: "mlx-community/gemma-4-26b-a4b-it-4bit",
        drafter: "mlx-community/gemma-4-26B-A4B-it-assistant-bf16",
        kind: Kind::Mtp,
        variant: Variant::Gemma4Vlm,
        block_size: 4,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "gemma-4-e4b-bf16",
        target: "mlx-community/gemma-4-e4b-it-4bit",
        drafter: "mlx-community/gemma-4-E4B-it-assistant-bf16",
        kind: Kind::Mtp,
        variant: Variant::Gemma4Vlm,
        block_size: 4,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "qwen3.8-27b-mtp-4bit",
        target: "mlx-community/Qwen3.8-27B-4bit",
        drafter: "mlx-community/Qwen3.8-27B-MTP-4bit",
        kind: Kind::Mtp,
        variant: Variant::Qwen35Vlm,
        block_size: 3,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "qwen3.8-27b-mtp-bf16",
        target: "mlx-community/Qwen3.8-27B-4bit",
        drafter: "mlx-community/Qwen3.8-27B-MTP-bf16",
        kind: Kind::Mtp,
        variant: Variant::Qwen35Vlm,
        block_size: 3,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "qwen3.5-4b-dflash",
        target: "mlx-community/Qwen3.5-4B-4bit",
        drafter: "z-lab/Qwen3.5-4B-DFlash",
        kind: Kind::Dflash,
        variant: Variant::Qwen35Vlm,
        block_size: 16,
        embedded: false,
        unverified: &[],
    },
    Pairing {
        name: "qwen3.5-35b-a3b-mtp-4bit",
        target: "mlx-community/Qwen3.5-35B-A3B-4bit",
        drafter: "mlx-community/Qwen3.5-35B-A3B-MTP-4bit",
        kind: Kind::Mtp,
        variant: Variant::Qwen35MoeVlm,
        block_size: 3,
        embedded: false,
        unverified: &["mlx-community/Qwen3.5-35B-A3B-MTP-4bit"],
    },
];

/// The pairing of that name.
pub fn find(name: &str) -> Option<&'static Pairing> {
    PAIRINGS.iter().find(|pairing| pairing.name == name)
}

/// A name without its owner.
fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Whether the catalogue pairs a target of one directory name with a drafting head of another. Upper and lower case are the same,
/// as on the hub.
pub fn are_paired(target: &str, drafter: &str) -> bool {
    let is = |own: &str, name: &str| last(own).eq_ignore_ascii_case(name);
    PAIRINGS.iter().any(|p| p.kind == Kind::Mtp && is(p.target, target) && is(p.drafter, drafter))
}

/// Where a pairing's checkpoints were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Directory of the target.
    pub target: PathBuf,
    /// Directory of the drafter.
    pub drafter: PathBuf,
}

impl Pairing {
    /// Finds both checkpoints.
    ///
    /// # Errors
    /// The first of the two that is nowhere, with the places looked at.
    pub fn resolve(&self, places: &Places) -> Result<Found, Absent> {
        Ok(Found { target: places.find(self.target)?, drafter: places.find(self.drafter)? })
    }
}

/// The pairings of a sweep: those with both checkpoints on disk, and where nothing is but the embedded ones, those. `all` takes every
/// pairing, so that the absent ones have a row that says so.
pub fn sweep(places: &Places, all: bool) -> Vec<&'static Pairing> {
    let found = |pairing: &&Pairing| pairing.resolve(places).is_ok();
    let own: Vec<&Pairing> = PAIRINGS.iter().filter(|pairing| !pairing.embedded).filter(found).collect();
    match (all, own.is_empty()) {
        (true, _) => PAIRINGS.iter().collect(),
        (false, false) => own,
        (false, true) => PAIRINGS.iter().filter(|pairing| pairing.embedded).collect(),
    }
}

/// The catalogue as `--list` shows it: what is on disk, and where.
pub fn list(places: &Places) -> String {
    let mut table = Table::new(&[
        ("pairing", Align::Left),
        ("kind", Align::Left),
        ("K", Align::Right),
        ("variant", Align::Left),
        ("target", Align::Left),
        ("drafter", Align::Left),
    ]);
    let mut note = false;
    for pairing in &PAIRINGS {
        let mut cell = |name: &str| {
            let doubt = if pairing.unverified.contains(&name) { "?" } else { "" };
            note |= !doubt.is_empty();
            match places.find(name) {
                Ok(dir) => dir.display().to_string(),
                Err(_) => format!("absent: {name}{doubt}"),
            }
        };
        let (target, drafter) = (cell(pairing.target), cell(pairing.drafter));
        table.push([
            pairing.name.into(),
            pairing.kind.name().into(),
            pairing.block_size.to_string(),
            pairing.variant.name().into(),
            target,
            drafter,
        ]);
    }
    let mut out = table.plain();
    out += "\nLooked in:\n";
    for place in places.described() {
        out += &format!("  {place}\n");
    }
    if note {
        out += "A name with ? has not been confirmed to exist on the hub.\n";
    }
    out += "Fetch a repository with: mlxcel pull OWNER/NAME\n";
    out
}

/// The catalogue as a table of docs/benchmarks.md, which a test keeps equal to this one.
pub fn markdown() -> String {
    let mut table = Table::new(&[
        ("pairing", Align::Left),
        ("target", Align::Left),
        ("drafter", Align::Left),
        ("kind", Align::Left),
        ("K", Align::Right),
        ("variant", Align::Left),
        ("embedded", Align::Left),
        ("unverified", Align::Left),
    ]);
    for pairing in &PAIRINGS {
        let unverified: Vec<&str> = [(pairing.target, "target"), (pairing.drafter, "drafter")]
            .into_iter()
            .filter_map(|(name, what)| pairing.unverified.contains(&name).then_some(what))
            .collect();
        table.push([
            pairing.name.into(),
            pairing.target.into(),
            pairing.drafter.into(),
            pairing.kind.name().into(),
            pairing.block_size.to_string(),
            pairing.variant.name().into(),
            if pairing.embedded { "yes" } else { "" }.into(),
            unverified.join(", "),
        ]);
    }
    table.markdown()
}

#[cfg(test)]
mod tests;
