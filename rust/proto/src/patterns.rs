//! One supplier's patterns: Python's `re.fullmatch`, by an engine that takes linear time in the length of the product
//! id.
//!
//! The regex crate has no look-around and no back-references; a pattern with one of them is refused with an error that
//! names it. What merely is written differently in Python (`\Z`, literal braces, brackets inside of a class) is
//! translated.

use std::iter::Peekable;
use std::str::Chars;

use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use regex_syntax::utf8::Utf8Sequences;

use crate::limits::{MAX_ID_BYTES, MAX_PATTERNS};
use crate::text::cut;

/// Compiled bytes of all patterns of one list together.
const MAX_LIST_PROGRAM_BYTES: usize = 4 << 20;
/// What the patterns of one list may take to be parsed and compiled together, in states of an automaton: the broker
/// does nothing else meanwhile. Plain names do not count.
const MAX_LIST_WORK: usize = 60_000;
/// The work of a class before it is parsed: its ranges are looked up, and folded if case is ignored.
const CLASS_WORK: usize = 16;
/// Nesting of groups; the parser is recursive.
const NEST_LIMIT: u32 = 64;
/// Bytes of an error text: the regex crate draws the pattern with an arrow, over several lines.
const MAX_REASON_BYTES: usize = 512;

/// Patterns of one list that are not plain names, compiled.
#[derive(Clone, Debug)]
pub(crate) struct Patterns(PikeVM);

impl Patterns {
    /// Whether one of them matches the whole id.
    pub(crate) fn is_match(&self, product_id: &str) -> bool {
        let input = Input::new(product_id).anchored(Anchored::Yes);
        self.0.is_match(&mut self.0.create_cache(), input)
    }
}

/// What identifies a pattern list: sorted, each pattern once.
pub(crate) fn normalized(product_ids: &[&str]) -> Vec<Box<str>> {
    let mut patterns: Vec<Box<str>> = product_ids.iter().map(|&p| p.into()).collect();
    patterns.sort_unstable();
    patterns.dedup();
    patterns
}

/// Compiles those patterns of a list that are not plain names (these are found by a hash map); `None` when all are.
///
/// # Errors
/// The text for the supplier: which pattern, and what is wrong with it.
pub(crate) fn compile(patterns: &[Box<str>]) -> Result<Option<Patterns>, String> {
    if patterns.is_empty() {
        return Err("Suppliers must register at least one product_id pattern".into());
    }
    if patterns.len() > MAX_PATTERNS {
        return Err(invalid(&format!("{} patterns, at most {MAX_PATTERNS} are allowed", patterns.len())));
    }
    let whole = parse(patterns, &mut Work(0))?;
    if whole.is_empty() {
        return Ok(None);
    }
    // A list is compiled once and asked once for each product. So the automaton without captures that is the quickest to
    // make is the best.
    let config = thompson::Config::new()
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(MAX_LIST_PROGRAM_BYTES));
    let too_large = |error: &dyn std::error::Error| invalid(&format!("all together: {}", reason(error)));
    let automaton =
        NFA::compiler().configure(config).build_many_from_hir(&whole).map_err(|error| too_large(&error))?;
    let engine = PikeVM::builder().build_from_nfa(automaton).map_err(|error| too_large(&error))?;
    Ok(Some(Patterns(engine)))
}

/// What was done for one list, and what the parsed patterns will take to be compiled.
struct Work(usize);

impl Work {
    fn add(&mut self, work: usize, patterns: &[Box<str>]) -> Result<(), String> {
        self.0 = self.0.saturating_add(work);
        if self.0 <= MAX_LIST_WORK {
            return Ok(());
        }
        let n = patterns.len();
        Err(invalid(&format!(
            "all {n} together are too large; use fewer, shorter repetitions, or [0-9] and [a-z] for \\d and \\w"
        )))
    }
}

/// Parses those patterns of a list that are not plain names.
fn parse(patterns: &[Box<str>], work: &mut Work) -> Result<Vec<Hir>, String> {
    let mut whole = Vec::new();
    for pattern in patterns {
        let refuse = |why: &str| invalid(&format!("{why} in {pattern:?}"));
        if pattern.len() > MAX_ID_BYTES {
            return Err(invalid(&format!("{} bytes, at most {MAX_ID_BYTES} are allowed", pattern.len())));
        }
        if is_literal(pattern) {
            continue;
        }
        let source = translate(pattern).map_err(|why| refuse(&why))?;
        // The work that a text can cause is bounded before it is parsed, and what it is made of before that is compiled.
        work.add(source.len() + CLASS_WORK * n_classes(&source), patterns)?;
        let parser = ParserBuilder::new().nest_limit(NEST_LIMIT).build().parse(&source);
        let parsed = parser.map_err(|error| refuse(&reason(&error)))?;
        work.add(states(&parsed), patterns)?;
        whole.push(Hir::concat(vec![Hir::look(Look::Start), parsed, Hir::look(Look::End)]));
    }
    Ok(whole)
}

/// Classes in a pattern of the regex crate, each of which may have hundreds of ranges; at most as many too many as there
/// are escaped characters.
fn n_classes(source: &str) -> usize {
    source.bytes().filter(|byte| matches!(byte, b'\\' | b'[' | b'.')).count()
}

/// States of the automaton that a pattern becomes, roughly.
fn states(hir: &Hir) -> usize {
    let all = |parts: &[Hir]| parts.iter().map(states).fold(1, usize::saturating_add);
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Class(Class::Unicode(class)) => {
            let sequences = class.iter().flat_map(|range| Utf8Sequences::new(range.start(), range.end()));
            sequences.map(|sequence| sequence.len()).sum()
        }
        HirKind::Class(Class::Bytes(class)) => 1 + class.ranges().len(),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min).max(1) as usize;
            states(&repetition.sub).saturating_add(4).saturating_mul(times)
        }
        HirKind::Capture(capture) => states(&capture.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => all(parts),
    }
}

fn invalid(why: &str) -> String {
    let why = cut(why, MAX_REASON_BYTES);
    format!("Invalid product_id pattern: {why}")
}

/// The parser draws the pattern with an arrow; the last line of the drawing contains the reason.
fn reason(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'])
}

/// From Python's syntax to the regex crate's.
fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern.chars().peekable();
    let mut after_quantifier = false;
    while let Some(c) = rest.next() {
        let mut quantifier = false;
        match c {
            '\\' => escape(&mut rest, &mut out)?,
            '[' => class(&mut rest, &mut out)?,
            '(' if rest.peek() == Some(&'?') => group(&mut rest, &mut out)?,
            '{' => quantifier = braces(&mut rest, &mut out),
            '+' if after_quantifier => return Err("a possessive quantifier".into()),
            '*' | '+' | '?' => {
                // The `?` of `*?` ends the quantifier: what follows is a new one, as in Python an error.
                quantifier = !after_quantifier;
                out.push(c);
            }
            _ => out.push(c),
        }
        after_quantifier = quantifier;
    }
    Ok(out)
}

/// What follows a backslash outside of a class.
fn escape(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    match rest.next() {
        None => Err("a backslash at the end".into()),
        Some('Z') => {
            out.push_str(r"\z");
            Ok(())
        }
        Some('0') => Err("an octal escape".into()),
        Some('1'..='9') => Err("a back-reference".into()),
        Some('N') => Err("a named character".into()),
        Some(c) => {
            escaped(c, out);
            Ok(())
        }
    }
}

/// A backslash and `c`: a class like `\d`, or `c` itself (in the regex crate `\<` is a word boundary).
fn escaped(c: char, out: &mut String) {
    if c.is_ascii_alphanumeric() {
        out.push('\\');
        out.push(c);
    } else {
        out.push_str(&regex_syntax::escape(c.encode_utf8(&mut [0; 4])));
    }
}

/// What follows `[`. In the regex crate `[`, `&&`, `--` and `~~` inside of a class build sets; in Python they are
/// characters.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    if rest.next_if_eq(&']').is_some() {
        out.push_str(r"\]");
    }
    while let Some(c) = rest.next() {
        match c {
            ']' => {
                out.push(']');
                return Ok(());
            }
            '\\' => match rest.next() {
                Some('0'..='9') => return Err("an octal escape".into()),
                Some('b') => out.push_str(r"\x08"),
                Some(c) if c.is_ascii_alphanumeric() => escaped(c, out),
                Some(c) => {
                    out.push('\\');
                    out.push(c);
                }
                None => break,
            },
            '-' if rest.peek() == Some(&'-') => return Err("a double dash inside of a class".into()),
            '[' | '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    Err("a class without its end".into())
}

/// What follows `(`, and starts with `?`.
fn group(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    rest.next();
    match rest.next() {
        Some('=' | '!') => Err("look-ahead".into()),
        Some('>') => Err("an atomic group".into()),
        Some('(') => Err("a conditional group".into()),
        Some('<') => Err("look-behind".into()),
        Some('#') => {
            if rest.any(|c| c == ')') {
                Ok(())
            } else {
                Err("a comment without its end".into())
            }
        }
        Some('P') => match rest.next() {
            Some('<') => {
                out.push_str("(?P<");
                Ok(())
            }
            _ => Err("a back-reference".into()),
        },
        Some(':') => {
            out.push_str("(?:");
            Ok(())
        }
        first => {
            out.push_str("(?");
            let mut flag = first;
            while let Some(c) = flag {
                match c {
                    ':' | ')' => {
                        out.push(c);
                        return Ok(());
                    }
                    'i' | 'm' | 's' | 'u' | '-' => out.push(c),
                    _ => return Err(format!("the flag {c:?}")),
                }
                flag = rest.next();
            }
            Err("a group without its end".into())
        }
    }
}

/// What follows `{`: a quantifier (then `true`), or in Python a character like any other.
fn braces(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> bool {
    let body: String = rest.clone().take_while(|&c| c != '}').collect();
    let (low, high) = body.split_once(',').unwrap_or((&body, &body));
    let number = |s: &str| s.chars().all(|c| c.is_ascii_digit());
    let closed = rest.clone().nth(body.chars().count()) == Some('}');
    if !closed || body.is_empty() || !number(low) || !number(high) {
        out.push_str(r"\{");
        return false;
    }
    let low = if low.is_empty() { "0" } else { low };
    out.push_str(&match body.contains(',') {
        true => format!("{{{low},{high}}}"),
        false => format!("{{{low}}}"),
    });
    // Python's own limit does not matter here: what becomes too large is refused when it is compiled.
    rest.nth(body.len());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, product: &str) -> bool {
        match compile(&normalized(&[pattern])).unwrap() {
            Some(set) => set.is_match(product),
            None => pattern == product,
        }
    }

    #[test]
    fn patterns_match_as_python_fullmatch_does() {
        // (pattern, matches, does not match); each checked against Python 3.11.
        for (pattern, yes, no) in [
            ("teacher", "teacher", "teacher2"),
            ("teacher.", "teacher2", "teacher"),
            ("a|ab", "ab", "abc"),
            (r"m-\d+", "m-12", "m-12\n"),
            (r"m-\d+\Z", "m-12", "m-12x"),
            (r"\Am", "m", "mm"),
            ("^m$", "m", "m\n"),
            ("x{2}", "xx", "x{2}x"),
            ("x{,2}", "xx", "xxx"),
            ("x{2,}", "xxxx", "x"),
            ("p{name}", "p{name}", "pname"),
            ("p{}", "p{}", "p"),
            ("{1,a}", "{1,a}", "1"),
            ("[[]x", "[x", "x"),
            ("[]a]+", "]a", "b"),
            ("[a&&b]", "&", "c"),
            (r"[\]\-x]+", "]-x", "y"),
            (r"\<a\>", "<a>", "a"),
            (r"a\ b\-c", "a b-c", "a  b-c"),
            ("(?i)abc", "ABC", "ABCD"),
            ("(?P<kind>s|t)-(?:1|2)", "t-2", "t-3"),
            ("a(?#note)b", "ab", "a(?#note)b"),
            ("a.*?b", "axxb", "axxbc"),
            (".+", "ü/ö", ""),
            (r"\w+", "größe", "a b"),
            (".", "x", "\n"),
        ] {
            assert!(matches(pattern, yes), "{pattern:?} on {yes:?}");
            assert!(!matches(pattern, no), "{pattern:?} on {no:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_in_words() {
        for (pattern, words) in [
            ("(?=a)b", "look-ahead"),
            ("(?!a)b", "look-ahead"),
            ("(?<=a)b", "look-behind"),
            ("(?<!a)b", "look-behind"),
            (r"(a)\1", "a back-reference"),
            ("(?P<x>a)(?P=x)", "a back-reference"),
            ("(a)?(?(1)b|c)", "a conditional group"),
            ("(?>a)", "an atomic group"),
            ("a++", "a possessive quantifier"),
            ("a{2}+", "a possessive quantifier"),
            (r"\0", "an octal escape"),
            ("(?x)a # b", "the flag 'x'"),
            ("a)|(b", "unopened group"),
            ("(a", "unclosed group"),
            ("[a", "a class without its end"),
            ("*", "missing expression"),
            ("a\\", "a backslash at the end"),
            (r"(?:\w{500}){500}", "too large"),
        ] {
            let error = compile(&normalized(&[pattern])).unwrap_err();
            assert!(error.starts_with("Invalid product_id pattern: "), "{error}");
            assert!(error.contains(words), "{pattern:?}: {error}");
        }
        let deep = format!("{}a{}", "(".repeat(400), ")".repeat(400));
        assert!(compile(&normalized(&[&deep])).unwrap_err().contains("nest"));
    }

    #[test]
    fn what_a_list_may_cost_is_bounded_whatever_it_is_made_of() {
        let numbered =
            |n: usize, text: &str| (0..n).map(|i| text.replace('#', &i.to_string())).collect::<Vec<_>>();
        let lists = [
            numbered(4000, "p#-."),
            numbered(2000, "model-#-.*"),
            numbered(1000, r"m#-\w+"),
            numbered(1000, r"(?i)m#-\w+"),
            numbered(40, &format!("#{}", r"\w".repeat(500))),
            numbered(40, &format!("#{}", ".*".repeat(500))),
            numbered(40, &format!("#{}", "(?:a?b?)".repeat(120))),
            numbered(1, r".{3000}"),
            numbered(1, r"(?:(?:(?:(?:a{99}){99}){99}){99}){99}"),
            numbered(500, r"#\pL{9}"),
            numbered(700, "model-#-[a-z0-9]+"),
            numbered(20, r"#-\d+-.*"),
        ];
        let mut n_accepted = 0;
        for list in lists {
            let list: Vec<_> = list.iter().map(String::as_str).collect();
            let list = normalized(&list);
            let mut work = Work(0);
            let parsed = parse(&list, &mut work);
            // Only the last pattern can exceed the limit, and then nothing is compiled.
            assert_eq!(parsed.is_ok(), work.0 <= MAX_LIST_WORK, "{:?} costs {}", list[0], work.0);
            let Ok(Some(Patterns(engine))) = compile(&list) else { continue };
            n_accepted += 1;
            let n_states = engine.get_nfa().states().len();
            assert!(n_states <= work.0, "{:?}: {n_states} states were counted as {}", list[0], work.0);
        }
        assert_eq!(n_accepted, 2, "the last two are nothing unusual");
    }

    #[test]
    fn lists_are_bounded_and_plain_names_need_no_engine() {
        assert!(compile(&[]).unwrap_err().contains("at least one"));
        assert!(compile(&normalized(&["a", "b-c", "d/e"])).unwrap().is_none());
        let long = "x".repeat(MAX_ID_BYTES + 1);
        assert!(compile(&normalized(&[&long])).unwrap_err().contains("1025 bytes"));
        let heavy: Vec<String> = (0..4000).map(|i| format!(r"p{i}-\w{{3}}")).collect();
        let heavy: Vec<&str> = heavy.iter().map(String::as_str).collect();
        assert!(compile(&normalized(&heavy)).unwrap_err().contains("all 4000 together"));
        let many: Vec<String> = (0..=MAX_PATTERNS).map(|i| format!("p{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(compile(&normalized(&many)).unwrap_err().contains("4097 patterns"));
    }
}
