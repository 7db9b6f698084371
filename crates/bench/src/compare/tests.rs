use super::*;
use crate::machine::Machine;

fn round(position: usize, proposed: &[u32], tokens: &[u32]) -> TraceRound {
    TraceRound {
        position,
        proposed: proposed.to_vec(),
        accepted: tokens.len() - 1,
        tokens: tokens.to_vec(),
        argmax: tokens.to_vec(),
        margins: tokens.iter().map(|t| Some(*t as f32)).collect(),
        draft_margins: proposed.iter().map(|t| Some(*t as f32 / 2.0)).collect(),
        logits: tokens.iter().map(|t| format!("{t:016x}")).collect(),
        hidden: vec![None; tokens.len()],
    }
}

fn trace(prompt: &str) -> Trace {
    Trace {
        pairing: "pair".into(),
        kind: "mtp".into(),
        k: Some(4),
        batch: 1,
        prompt: prompt.into(),
        prompt_ids: vec![prompt.len() as u32],
        rounds: vec![round(9, &[1, 2, 3], &[1, 2, 5]), round(12, &[6, 7, 8], &[6, 7, 8, 9])],
        ..Trace::default()
    }
}

fn row(prompt: &str, k: usize, acceptance: f64) -> Row {
    let kind = if k == 1 { "none" } else { "mtp" };
    Row {
        pairing: "pair".into(),
        kind: kind.into(),
        k: Some(k),
        batch: 1,
        prompt: prompt.into(),
        acceptance_rate: Some(acceptance),
        ..Row::unmeasured()
    }
}

fn file(prompt: &str, change: impl Fn(&mut Trace)) -> Report {
    let mut trace = trace(prompt);
    change(&mut trace);
    Report::new(Machine::here(), vec![row(prompt, 1, 0.0), row(prompt, 4, 0.5)]).with_traces(vec![trace])
}

fn verdict(a: &Report, b: &Report) -> (Cause, String) {
    let lines = compare(a, b);
    assert_eq!(lines.len(), 1, "plain rows take no part: {lines:?}");
    (lines[0].cause.clone(), lines[0].verdict())
}

#[test]
fn equal_rounds_clear_the_hosts() {
    let (cause, words) = verdict(&file("story", |_| {}), &file("story", |_| {}));
    assert_eq!(cause, Cause::Same { rounds: 2 });
    assert!(words.starts_with("prompt/pairing"), "{words}");
}

#[test]
fn other_prompts_say_nothing_of_the_hosts() {
    let (a, b) = (file("story", |_| {}), file("code", |_| {}));
    let line = &compare(&a, &b)[0];
    assert_eq!((line.prompts.0.as_str(), line.prompts.1.as_deref()), ("story", Some("code")));
    let (cause, words) = verdict(&a, &b);
    assert_eq!(cause, Cause::Prompt);
    assert!(words.starts_with("prompt:"), "{words}");
    // The same name for another text, too.
    let renamed = file("story", |t| t.prompt_ids = vec![99]);
    assert_eq!(verdict(&a, &renamed).0, Cause::Prompt);
}

#[test]
fn the_first_round_that_parts_names_the_host() {
    let a = file("story", |_| {});
    let parted = |change: &dyn Fn(&mut Trace)| match verdict(&a, &file("story", change)) {
        (Cause::Host { parting }, words) => {
            assert!(words.starts_with("host"), "{words}");
            parting
        }
        other => panic!("{other:?}"),
    };
    let drafts = parted(&|t| t.rounds[1].proposed[1] = 70);
    assert_eq!((drafts.round, drafts.position, drafts.what), (Some(1), Some(12), Some("drafts")));
    assert_eq!((drafts.margin, drafts.draft_margin, drafts.bits), (Some(6.0), Some(3.5), None));
    let tokens = parted(&|t| t.rounds[1] = round(12, &[6, 7, 8], &[6, 4]));
    assert_eq!(
        (tokens.round, tokens.what, tokens.margin, tokens.bits),
        (Some(1), Some("tokens"), Some(4.0), Some((1, 12)))
    );
    let width = parted(&|t| t.rounds[0].proposed.truncate(2));
    assert_eq!((width.round, width.what), (Some(0), Some("width")));
    let missing = parted(&|t| t.rounds.truncate(1));
    assert_eq!((missing.round, missing.position), (Some(1), Some(12)));
    // Bits that changed nothing are told, and told to explain nothing.
    let bits = parted(&|t| t.rounds[0].hidden[1] = Some("0".into()));
    assert_eq!((bits.round, bits.bits), (None, Some((0, 9))));
    let both = parted(&|t| {
        t.rounds[0].logits[0] = "0".into();
        t.rounds[1].proposed[0] = 1;
    });
    assert_eq!((both.round, both.bits), (Some(1), Some((0, 9))));
}

#[test]
fn what_cannot_be_compared_is_said() {
    let a = file("story", |_| {});
    let (cause, _) = verdict(&a, &file("story", |t| t.checkpoint = "other".into()));
    assert_eq!(cause, Cause::Pairing { what: "checkpoint".into() });
    let (cause, _) = verdict(&a, &file("story", |t| t.sampling.0 = 0.8));
    assert_eq!(cause, Cause::Pairing { what: "sampling".into() });
    let mut untraced = file("story", |_| {});
    untraced.traces.clear();
    let (cause, words) = verdict(&a, &untraced);
    assert!(cause == Cause::Unknown && words.contains("--trace"), "{words}");
    // Another K has no like.
    let mut wide = file("story", |t| t.k = Some(8));
    wide.rows[1].k = Some(8);
    assert!(compare(&a, &wide).is_empty());
    assert!(text(&[], "a", "b").contains("no row"));
}

#[test]
fn figures_stand_side_by_side() {
    let lines = compare(&file("story", |_| {}), &file("story", |t| t.rounds[1].proposed[1] = 70));
    let text = text(&lines, "one.json", "two.json");
    for part in
        ["one.json", "two.json", "pair  K=4  B=1  story", "0.500 / 0.500", "host: round 1 (position 12)", "6.000e0"]
    {
        assert!(text.contains(part), "{part:?} not in {text}");
    }
    let json = serde_json::to_value(&lines).expect("JSON");
    assert_eq!((&json[0]["cause"], &json[0]["parting"]["round"]), (&"host".into(), &1.into()));
}
