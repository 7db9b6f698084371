//! The gate: whether an engine may draft at all, and what the operator pinned.
//!
//! Drafting never changes an answer as long as a block's rows are the rows of single steps. The probe measures that before
//! anything is served; where it is not so, drafts are declined and answers are plain, unless the operator insists. After the
//! gate come the request's own wish (`Request::block_size`) and the width controller.

use super::{Coupling, Speculation};

/// What the operator pinned, from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `MLXCEL_MTP_ALLOW_INEXACT`: draft even where the probe fails.
    pub allow_inexact: bool,
    /// `MLXCEL_MTP_ADAPTIVE`: measure and adapt the block width; else the drafter's own is used.
    pub adaptive: bool,
    /// `MLXCEL_ENABLE_MTP_B1`: whether a sequence that runs alone drafts, at the drafter's own width; `None` = as measured.
    pub alone: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { allow_inexact: false, adaptive: true, alone: None }
    }
}

/// A variable that says neither yes nor no.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: 1, true, yes, on, 0, false, no or off expected, found {found:?}")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub found: String,
}

impl Settings {
    /// Reads the variables through `variable`; unset and empty ones keep the defaults.
    ///
    /// # Errors
    /// [`SettingError`] names the variable.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let flag = |name: &'static str| match variable(name).as_deref().map(str::trim) {
            None | Some("") => Ok(None),
            Some(value) => match value.to_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Ok(Some(true)),
                "0" | "false" | "no" | "off" => Ok(Some(false)),
                _ => Err(SettingError { name, found: value.into() }),
            },
        };
        Ok(Settings {
            allow_inexact: flag("MLXCEL_MTP_ALLOW_INEXACT")?.unwrap_or(false),
            adaptive: flag("MLXCEL_MTP_ADAPTIVE")?.unwrap_or(true),
            alone: flag("MLXCEL_ENABLE_MTP_B1")?,
        })
    }

    /// How an engine speculates under these settings; `block_size` is the operator's pin.
    pub fn speculation(&self, block_size: Option<usize>) -> Speculation {
        Speculation {
            block_size,
            adaptive: self.adaptive,
            alone: self.alone,
            coupling: Coupling::Coupled,
            ..Speculation::default()
        }
    }

    /// What to do about what a probe found: `None` = every block is exact, else why not; `more` says how to see more of it.
    pub fn decide(&self, why: Option<&str>, more: &str) -> Decision {
        match why {
            None => Decision::Draft,
            Some(why) if self.allow_inexact => Decision::DraftInexact(format!(
                "speculative decoding is NOT EXACT here (INEXACT) and runs because MLXCEL_MTP_ALLOW_INEXACT is set; answers may \
                 differ from plain decoding: {why}"
            )),
            Some(why) => Decision::Decline(format!(
                "speculative decoding is declined, answers come from plain decoding: {why}. {more}; \
                 MLXCEL_MTP_ALLOW_INEXACT=1 overrides"
            )),
        }
    }
}

/// What the gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Draft.
    Draft,
    /// Draft, and say everywhere that it is not exact; the text is the warning.
    DraftInexact(String),
    /// Do not draft; the text is the warning.
    Decline(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
    }

    #[test]
    fn variables_say_yes_or_no() {
        assert_eq!(read(&[]), Ok(Settings::default()));
        let all = read(&[
            ("MLXCEL_MTP_ALLOW_INEXACT", "1"),
            ("MLXCEL_MTP_ADAPTIVE", "off"),
            ("MLXCEL_ENABLE_MTP_B1", " No "),
        ]);
        assert_eq!(all, Ok(Settings { allow_inexact: true, adaptive: false, alone: Some(false) }));
        assert_eq!(read(&[("MLXCEL_ENABLE_MTP_B1", "TRUE")]).map(|s| s.alone), Ok(Some(true)));
        assert_eq!(read(&[("MLXCEL_MTP_ADAPTIVE", "")]), Ok(Settings::default()));
        let error = read(&[("MLXCEL_MTP_ADAPTIVE", "maybe")]).expect_err("accepted");
        assert!(error.to_string().starts_with("MLXCEL_MTP_ADAPTIVE: 1, true"), "{error}");
        assert!(error.to_string().ends_with("found \"maybe\""), "{error}");
    }

    #[test]
    fn a_failing_probe_declines_unless_overridden() {
        let (why, more) = (Some("K=4 B=1: layer 0, q_proj"), "To see more: mlxcel probe -m here");
        assert_eq!(Settings::default().decide(None, more), Decision::Draft);
        let Decision::Decline(text) = Settings::default().decide(why, more) else { panic!("not declined") };
        assert!(text.contains("q_proj") && text.contains("plain decoding") && text.contains(more), "{text}");
        let insists = Settings { allow_inexact: true, ..Settings::default() };
        let Decision::DraftInexact(text) = insists.decide(why, more) else { panic!("not allowed") };
        assert!(text.contains("NOT EXACT") && text.contains("INEXACT") && text.contains("q_proj"), "{text}");
        assert_eq!(insists.decide(None, more), Decision::Draft);
    }
}
