//! Every ordered access to an atomic names the one it pairs with, and that one names it back.

use std::collections::BTreeSet;
use std::fs;

/// All tags: a change that removes both sides of one must remove it here.
const TAGS: [&str; 15] = [
    "awaited-changes",
    "client-known",
    "doorbell",
    "end-flagged",
    "entry-freed",
    "entry-locked",
    "entry-taken",
    "error-read",
    "lane-begun",
    "order-placed",
    "order-returned",
    "sample-published",
    "supplier-known",
    "table-changed",
    "tail-moved",
];
const ORDERINGS: [(&str, bool, bool); 4] = [
    ("Ordering::Release", true, false),
    ("Ordering::Acquire", false, true),
    ("Ordering::AcqRel", true, true),
    ("Ordering::SeqCst", true, true),
];

/// An ordered access: its function, its tag, its sides, and the functions that it names as partners.
#[derive(Debug)]
struct Access<'a> {
    function: &'a str,
    tag: &'a str,
    releases: bool,
    acquires: bool,
    partners: Vec<String>,
}

fn sources() -> Vec<(String, String)> {
    let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lane")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let sources = files.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = fs::read_to_string(path).unwrap();
        (name, source.split("\n#[cfg(test)]\nmod tests {").next().unwrap().to_owned())
    });
    sources.filter(|(name, _)| !name.ends_with("tests.rs")).collect()
}

/// The ordered accesses of a file; faults of their tags are added to `faults`.
fn accesses<'a>(file: &str, source: &'a str, faults: &mut Vec<String>) -> Vec<Access<'a>> {
    let lines: Vec<&str> = source.lines().collect();
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let (mut found, mut function, mut named) = (Vec::new(), "", BTreeSet::new());
    for (at, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap();
        if let Some((_, rest)) = code.split_once("fn ") {
            function = rest.split(['(', '<']).next().unwrap();
        }
        for (ordering, releases, acquires) in ORDERINGS {
            let n = code.matches(ordering).count();
            if n == 0 {
                continue;
            }
            // Up to the beginning of the statement; the comment is above it.
            let mut above = at;
            while above > 0 && !is_comment(lines[above - 1]) && !lines[above - 1].ends_with([';', '{', '}']) {
                above -= 1;
            }
            let first = (0..above).rev().take_while(|&at| is_comment(lines[at])).last().unwrap_or(above);
            let Some(sync) = (first..above).find(|&at| lines[at].contains("// SYNC(")) else {
                faults.push(format!("{file}:{}: no SYNC comment above", at + 1));
                continue;
            };
            if n > 1 || !named.insert(sync) {
                faults.push(format!("{file}:{}: two accesses under one SYNC comment", at + 1));
            }
            let (tag, _) = lines[sync].split_once("SYNC(").unwrap().1.split_once(')').unwrap();
            let text = lines[sync..above].join(" ");
            let pairs = text.split_once("): pairs with ").unwrap_or_default().1.split(';').next().unwrap();
            let partners = pairs.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            found.push(Access { function, tag, releases, acquires, partners });
        }
    }
    let comments = (0..lines.len()).filter(|&at| lines[at].contains("// SYNC("));
    let idle = comments.filter(|at| !named.contains(at));
    faults.extend(idle.map(|at| format!("{file}:{}: names no ordered access", at + 1)));
    found
}

/// The faults of all sources.
fn faults(sources: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    let all: Vec<Access<'_>> =
        sources.iter().flat_map(|(file, source)| accesses(file, source, &mut faults)).collect();
    for one in &all {
        if one.partners.is_empty() {
            faults.push(format!("SYNC({}) in `{}` names no partner", one.tag, one.function));
        }
        for partner in &one.partners {
            let fits = |other: &&Access<'_>| {
                !std::ptr::eq(one, *other)
                    && (other.tag, other.function) == (one.tag, partner)
                    && (one.releases && other.acquires || one.acquires && other.releases)
                    && other.partners.iter().any(|back| back == one.function)
            };
            if !all.iter().any(|other| fits(&other)) {
                faults.push(format!("SYNC({}): `{}` and `{partner}` do not pair", one.tag, one.function));
            }
        }
    }
    let tags: BTreeSet<&str> = all.iter().map(|access| access.tag).collect();
    if !tags.iter().eq(&TAGS) {
        faults.push(format!("the names are {tags:?}"));
    }
    faults
}

#[test]
fn every_ordered_access_has_a_partner() {
    assert_eq!(faults(&sources()), [""; 0]);
}

#[test]
fn a_missing_partner_is_found() {
    let comment_of = |source: &str, function: &str, tag: &str| {
        let from = source.find(&format!("fn {function}(")).unwrap();
        let from = from + source[from..].find(&format!("// SYNC({tag})")).unwrap();
        source[from..].split_inclusive('\n').next().unwrap().to_owned()
    };
    // The comment of an access, its replacement, and the change of its ordering.
    for (file, function, tag, change, from, to) in [
        ("ring.rs", "begin", "lane-begun", "", "AcqRel", "Relaxed"),
        ("ring.rs", "place", "order-placed", "", "Release", "Relaxed"),
        ("ring.rs", "unclaim", "order-placed", "", "Release", "Relaxed"),
        (
            "ring.rs",
            "place",
            "order-placed",
            "// SYNC(order-placed): pairs with `moon`.\n",
            "Release",
            "Release",
        ),
        ("ring.rs", "place", "order-placed", "// SYNC(order-placed): good.\n", "Release", "Release"),
        (
            "ring.rs",
            "state_of",
            "sample-published",
            "// SYNC(sample-published): pairs with `publish`.\n",
            "Acquire",
            "Release",
        ),
        (
            "ring.rs",
            "state_of",
            "sample-published",
            "// SYNC(end-flagged): pairs with `publish`.\n",
            "Acquire",
            "Acquire",
        ),
        ("ring.rs", "place", "order-placed", "", "Release", "Release"),
        ("doorbell.rs", "waiting_peers", "doorbell", "", "SeqCst", "Relaxed"),
        ("errors.rs", "free", "error-read", "", "Release", "Relaxed"),
    ] {
        let mut sources = sources();
        let (_, source) = sources.iter_mut().find(|(name, _)| name == file).unwrap();
        let comment = comment_of(source, function, tag);
        let (before, after) = source.split_once(&format!("fn {function}(")).unwrap();
        let (middle, after) = after.split_once(&comment).unwrap();
        let after = after.replacen(&format!("Ordering::{from}"), &format!("Ordering::{to}"), 1);
        *source = format!("{before}fn {function}({middle}{change}{after}");
        assert!(!faults(&sources).is_empty(), "{file}: {function}: {change}{to}");
    }
}
