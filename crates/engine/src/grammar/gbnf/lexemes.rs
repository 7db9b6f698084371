//! Pieces for a lexer that takes the longest match, such that the longest is never too long.
//!
//! A piece is a regular part of a rule: it refers to no rule that comes back to itself, and is not empty. The lexer goes on with a
//! piece as long as *some* piece could go on. So after a match of piece A, a character that A or any other piece B could go on with there is
//! never read as the beginning of what follows A. Where it might be one, A is cut into its parts, or B where A is one character; pieces
//! of single characters are always safe.

use std::collections::{HashMap, HashSet};

use super::chars::Set;
use super::{GrammarError, Node, size};

/// Bytes of a piece's regular expression; what is longer is put together from smaller ones.
const PIECE: usize = 16 << 10;

/// Characters in all pieces.
const POSITIONS: usize = 4000;

/// Steps of comparing pieces.
const STEPS: usize = 5_000_000;

/// Bytes of the translation.
const OUTPUT: usize = 1 << 20;

pub(super) fn translate(rules: &[Node], root: usize) -> Result<String, GrammarError> {
    let regular = Regular::new(rules);
    let mut cut = HashSet::new();
    loop {
        let draft = Draft::new(rules, root, &regular, &cut);
        let more = draft.too_long()?;
        if more.is_empty() {
            return draft.print(root);
        }
        cut.extend(more);
    }
}

/// What is known of rules that are regular languages.
struct Regular<'a> {
    rules: &'a [Node],
    /// Bytes of each rule's regular expression; `None` for a rule that is none, or a long one.
    length: Vec<Option<usize>>,
    /// Whether each rule may be empty.
    empty: Vec<bool>,
}

impl<'a> Regular<'a> {
    fn new(rules: &'a [Node]) -> Self {
        let (length, empty) = (vec![None; rules.len()], vec![false; rules.len()]);
        let mut regular = Regular { rules, length, empty };
        loop {
            let length: Vec<_> = rules.iter().map(|rule| regular.length(rule)).collect();
            let empty: Vec<_> = rules.iter().map(|rule| regular.may_be_empty(rule)).collect();
            if (&length, &empty) == (&regular.length, &regular.empty) {
                return regular;
            }
            (regular.length, regular.empty) = (length, empty);
        }
    }

    fn length(&self, node: &Node) -> Option<usize> {
        let length = match node {
            Node::Class(set) => set.length(),
            Node::Rule(rule) => self.length[*rule]?,
            Node::Seq(parts) | Node::Alt(parts) => {
                parts.iter().try_fold(4, |sum, part| Some(sum + 1 + self.length(part)?))?
            }
            Node::Repeat(part, ..) => 20 + self.length(part)?,
        };
        (length <= PIECE).then_some(length)
    }

    fn may_be_empty(&self, node: &Node) -> bool {
        match node {
            Node::Class(_) => false,
            Node::Rule(rule) => self.empty[*rule],
            Node::Seq(parts) => parts.iter().all(|part| self.may_be_empty(part)),
            Node::Alt(parts) => parts.iter().any(|part| self.may_be_empty(part)),
            Node::Repeat(part, low, high) => *low == 0 || *high == Some(0) || self.may_be_empty(part),
        }
    }

    /// Only for nodes with a length.
    fn regex(&self, node: &Node) -> String {
        let all = |parts: &[Node]| parts.iter().map(|part| self.regex(part)).collect::<Vec<_>>();
        match node {
            Node::Class(set) => set.regex(),
            Node::Rule(rule) => self.regex(&self.rules[*rule]),
            Node::Seq(parts) => all(parts).concat(),
            Node::Alt(parts) => format!("(?:{})", all(parts).join("|")),
            Node::Repeat(part, low, high) => {
                let high = high.map_or(String::new(), |high| high.to_string());
                format!("(?:{}){{{low},{high}}}", self.regex(part))
            }
        }
    }

    /// Its characters' order, with counts taken as "any number": what may follow what is then never less than it is.
    fn automaton(&self, node: &Node) -> Automaton {
        match node {
            Node::Class(set) => Automaton {
                classes: vec![set.clone()],
                next: vec![Vec::new()],
                first: vec![0],
                last: vec![0],
                empty: false,
            },
            Node::Rule(rule) => self.automaton(&self.rules[*rule]),
            Node::Seq(parts) => {
                parts.iter().fold(Automaton::nothing(true), |so_far, part| so_far.then(self.automaton(part)))
            }
            Node::Alt(parts) => {
                parts.iter().fold(Automaton::nothing(false), |so_far, part| so_far.or(self.automaton(part)))
            }
            Node::Repeat(_, _, Some(0)) => Automaton::nothing(true),
            Node::Repeat(part, low, Some(1)) => {
                let mut one = self.automaton(part);
                one.empty |= *low == 0;
                one
            }
            Node::Repeat(part, low, _) => {
                let mut many = self.automaton(part);
                for from in many.last.clone() {
                    join(&mut many.next[from], &many.first);
                }
                many.empty |= *low == 0;
                many
            }
        }
    }
}

/// Positions of characters in a regular expression and what may follow them.
struct Automaton {
    classes: Vec<Set>,
    next: Vec<Vec<usize>>,
    first: Vec<usize>,
    last: Vec<usize>,
    empty: bool,
}

impl Automaton {
    fn nothing(empty: bool) -> Self {
        Automaton { classes: Vec::new(), next: Vec::new(), first: Vec::new(), last: Vec::new(), empty }
    }

    /// Takes another's positions over, behind its own.
    fn adopt(&mut self, other: &mut Automaton) {
        let moved = self.classes.len();
        for list in other.next.iter_mut().chain([&mut other.first, &mut other.last]) {
            list.iter_mut().for_each(|position| *position += moved);
        }
        self.classes.append(&mut other.classes);
        self.next.append(&mut other.next);
    }

    fn then(mut self, mut other: Automaton) -> Self {
        self.adopt(&mut other);
        for from in self.last.clone() {
            join(&mut self.next[from], &other.first);
        }
        if self.empty {
            self.first.extend(&other.first);
        }
        match other.empty {
            true => self.last.extend(&other.last),
            false => self.last = other.last,
        }
        self.empty &= other.empty;
        self
    }

    fn or(mut self, mut other: Automaton) -> Self {
        self.adopt(&mut other);
        self.first.extend(&other.first);
        self.last.extend(&other.last);
        self.empty |= other.empty;
        self
    }
}

fn join(to: &mut Vec<usize>, more: &[usize]) {
    more.iter().for_each(|position| {
        if !to.contains(position) {
            to.push(*position);
        }
    });
}

/// A rule in pieces.
enum Out {
    Piece(usize),
    Rule(usize),
    Seq(Vec<Out>),
    Alt(Vec<Out>),
    Maybe(Box<Out>),
    Repeat(Box<Out>, usize, Option<usize>),
}

struct Draft<'a> {
    regular: &'a Regular<'a>,
    cut: &'a HashSet<String>,
    pieces: Vec<(String, Automaton)>,
    numbers: HashMap<String, usize>,
    /// The rules that the root needs.
    out: Vec<Option<Out>>,
}

impl<'a> Draft<'a> {
    fn new(rules: &'a [Node], root: usize, regular: &'a Regular<'a>, cut: &'a HashSet<String>) -> Self {
        let out = rules.iter().map(|_| None).collect();
        let mut draft = Draft { regular, cut, pieces: Vec::new(), numbers: HashMap::new(), out };
        let mut open = vec![root];
        while let Some(rule) = open.pop() {
            if draft.out[rule].is_none() {
                let out = draft.put(&rules[rule]);
                referred(&out, &mut open);
                draft.out[rule] = Some(out);
            }
        }
        draft
    }

    /// A node in as few pieces as may be.
    fn put(&mut self, node: &Node) -> Out {
        if let Some(piece) = self.piece(node) {
            return Out::Piece(piece);
        }
        match node {
            // Always a piece.
            Node::Class(_) => Out::Seq(Vec::new()),
            Node::Rule(rule) => Out::Rule(*rule),
            Node::Seq(parts) => {
                let mut out = Vec::new();
                let mut run: &[Node] = &[];
                for (i, part) in parts.iter().enumerate() {
                    match self.regular.length(part) {
                        Some(_) => run = &parts[i - run.len()..=i],
                        None => {
                            self.put_run(run, &mut out);
                            run = &[];
                            out.push(self.put(part));
                        }
                    }
                }
                if run.len() == parts.len() {
                    // It was tried as a whole.
                    out.extend(run.iter().map(|part| self.put(part)));
                } else {
                    self.put_run(run, &mut out);
                }
                Out::Seq(out)
            }
            Node::Alt(parts) => {
                let empty = |part: &&Node| matches!(part, Node::Seq(items) if items.is_empty());
                let some = parts.iter().filter(|part| !empty(part)).map(|part| self.put(part)).collect();
                let alt = Out::Alt(some);
                if parts.iter().any(|part| empty(&part)) { Out::Maybe(Box::new(alt)) } else { alt }
            }
            Node::Repeat(_, _, Some(0)) => Out::Seq(Vec::new()),
            Node::Repeat(part, 0, Some(1)) => Out::Maybe(Box::new(self.put(part))),
            Node::Repeat(part, 0, high) => Out::Maybe(Box::new(self.put(&Node::Repeat(part.clone(), 1, *high)))),
            Node::Repeat(part, low, high) => Out::Repeat(Box::new(self.put(part)), *low, *high),
        }
    }

    /// Neighbours that are regular, together if that may be.
    fn put_run(&mut self, run: &[Node], out: &mut Vec<Out>) {
        let whole = Node::Seq(run.to_vec());
        match self.piece(&whole) {
            Some(piece) => out.push(Out::Piece(piece)),
            None => out.extend(run.iter().map(|part| self.put(part))),
        }
    }

    fn piece(&mut self, node: &Node) -> Option<usize> {
        self.regular.length(node)?;
        if self.regular.may_be_empty(node) {
            return None;
        }
        let regex = self.regular.regex(node);
        if self.cut.contains(&regex) {
            return None;
        }
        if let Some(number) = self.numbers.get(&regex) {
            return Some(*number);
        }
        let number = self.pieces.len();
        self.pieces.push((regex.clone(), self.regular.automaton(node)));
        self.numbers.insert(regex, number);
        Some(number)
    }

    /// Pieces that must be cut.
    fn too_long(&self) -> Result<Vec<String>, GrammarError> {
        if self.pieces.iter().map(|(_, a)| a.classes.len()).sum::<usize>() > POSITIONS {
            return Err(size("characters in classes and literals", POSITIONS));
        }
        let follow = self.follow();
        let (mut more, mut steps) = (Vec::new(), 0);
        for ((regex, a), follow) in self.pieces.iter().zip(&follow) {
            for (other, b) in &self.pieces {
                if self.runs_into(a, b, follow, &mut steps)? {
                    // A single character cannot be cut, so the one that goes on is.
                    more.push(if a.classes.len() > 1 || regex == other || single(b) { regex } else { other }.clone());
                }
            }
        }
        more.retain(|regex| !self.cut.contains(regex));
        Ok(more)
    }

    /// Whether some match of `a` begins a longer word of `b` that goes on with a character of `follow`.
    fn runs_into(&self, a: &Automaton, b: &Automaton, follow: &Set, steps: &mut usize) -> Result<bool, GrammarError> {
        let mut seen = HashSet::new();
        let pairs =
            |from: &[usize], to: &[usize]| from.iter().flat_map(|p| to.iter().map(|q| (*p, *q))).collect::<Vec<_>>();
        let mut open = pairs(&a.first, &b.first);
        while let Some((p, q)) = open.pop() {
            *steps += 1;
            if *steps > STEPS {
                return Err(size("steps to compare its parts", STEPS));
            }
            if !a.classes[p].meets(&b.classes[q]) || !seen.insert((p, q)) {
                continue;
            }
            if a.last.contains(&p) && b.next[q].iter().any(|next| b.classes[*next].meets(follow)) {
                return Ok(true);
            }
            open.extend(pairs(&a.next[p], &b.next[q]));
        }
        Ok(false)
    }

    /// Characters that may follow each piece.
    fn follow(&self) -> Vec<Set> {
        let mut state = Follow {
            draft: self,
            first: vec![Set::default(); self.out.len()],
            after: vec![Set::default(); self.out.len()],
            pieces: vec![Set::default(); self.pieces.len()],
            changed: true,
        };
        while std::mem::take(&mut state.changed) {
            for (rule, out) in self.out.iter().enumerate() {
                let Some(out) = out else { continue };
                let (first, _) = state.begins(out);
                state.changed |= state.first[rule].add(&first);
                let after = state.after[rule].clone();
                state.spread(out, &after);
            }
        }
        state.pieces
    }

    fn print(&self, root: usize) -> Result<String, GrammarError> {
        let mut text = format!("start: r{root}\n");
        for (rule, out) in self.out.iter().enumerate().filter_map(|(rule, out)| Some((rule, out.as_ref()?))) {
            text.push_str(&format!("r{rule}: "));
            self.write(out, &mut text);
            text.push('\n');
            if text.len() > OUTPUT {
                return Err(size("bytes, written out,", OUTPUT));
            }
        }
        Ok(text)
    }

    fn write(&self, out: &Out, text: &mut String) {
        let list = |parts: &[Out], between: &str, text: &mut String| {
            text.push('(');
            for (i, part) in parts.iter().enumerate() {
                text.push_str(if i > 0 { between } else { "" });
                self.write(part, text);
            }
            text.push_str(if parts.is_empty() { "\"\")" } else { ")" });
        };
        match out {
            Out::Piece(piece) => text.push_str(&format!("/{}/", self.pieces[*piece].0)),
            Out::Rule(rule) => text.push_str(&format!("r{rule}")),
            Out::Seq(parts) => list(parts, " ", text),
            Out::Alt(parts) => list(parts, " | ", text),
            Out::Maybe(part) => {
                list(std::slice::from_ref(part), "", text);
                text.push('?');
            }
            Out::Repeat(part, low, high) => {
                list(std::slice::from_ref(part), "", text);
                let high = high.map_or(String::new(), |high| high.to_string());
                text.push_str(&format!("{{{low},{high}}}"));
            }
        }
    }
}

fn single(automaton: &Automaton) -> bool {
    automaton.next.iter().all(Vec::is_empty)
}

fn referred(out: &Out, rules: &mut Vec<usize>) {
    match out {
        Out::Piece(_) => {}
        Out::Rule(rule) => rules.push(*rule),
        Out::Seq(parts) | Out::Alt(parts) => parts.iter().for_each(|part| referred(part, rules)),
        Out::Maybe(part) | Out::Repeat(part, ..) => referred(part, rules),
    }
}

/// The classical sets of a grammar, as they grow.
struct Follow<'a> {
    draft: &'a Draft<'a>,
    first: Vec<Set>,
    after: Vec<Set>,
    pieces: Vec<Set>,
    changed: bool,
}

impl Follow<'_> {
    /// Characters that may begin it, and whether it may be empty.
    fn begins(&self, out: &Out) -> (Set, bool) {
        match out {
            Out::Piece(piece) => {
                let automaton = &self.draft.pieces[*piece].1;
                let mut set = Set::default();
                for position in &automaton.first {
                    set.add(&automaton.classes[*position]);
                }
                (set, false)
            }
            Out::Rule(rule) => (self.first[*rule].clone(), self.draft.regular.empty[*rule]),
            Out::Seq(parts) => {
                let mut set = Set::default();
                for part in parts {
                    let (first, empty) = self.begins(part);
                    set.add(&first);
                    if !empty {
                        return (set, false);
                    }
                }
                (set, true)
            }
            Out::Alt(parts) => {
                parts.iter().map(|part| self.begins(part)).fold((Set::default(), false), |mut all, one| {
                    all.0.add(&one.0);
                    (all.0, all.1 | one.1)
                })
            }
            Out::Maybe(part) => (self.begins(part).0, true),
            Out::Repeat(part, low, _) => {
                let (first, empty) = self.begins(part);
                (first, empty || *low == 0)
            }
        }
    }

    /// Hands down what may follow.
    fn spread(&mut self, out: &Out, after: &Set) {
        match out {
            Out::Piece(piece) => self.changed |= self.pieces[*piece].add(after),
            Out::Rule(rule) => self.changed |= self.after[*rule].add(after),
            Out::Seq(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.spread(part, &after);
                    let (first, empty) = self.begins(part);
                    if empty {
                        after.add(&first);
                    } else {
                        after = first;
                    }
                }
            }
            Out::Alt(parts) => parts.iter().for_each(|part| self.spread(part, after)),
            Out::Maybe(part) => self.spread(part, after),
            Out::Repeat(part, ..) => {
                let mut after = after.clone();
                after.add(&self.begins(part).0);
                self.spread(part, &after);
            }
        }
    }
}
