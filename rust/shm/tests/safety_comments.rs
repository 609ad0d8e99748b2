//! Each `unsafe` cites an existing invariant, and is in a module that the crate documentation lists.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const DOC: &str = include_str!("../src/lib.rs");

fn invariants() -> BTreeSet<&'static str> {
    DOC.lines()
        .filter_map(|line| line.strip_prefix("//! * **")?.split_once("**"))
        .map(|(name, _)| name)
        .collect()
}

/// The sources below a directory of this workspace, by their paths from there.
fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let (mut found, mut dirs) = (Vec::new(), vec![root.clone()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.strip_prefix(&root).unwrap().to_owned(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

/// The SAFETY comments: the number of their first line, and their text.
fn reasons(source: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let starts = (0..lines.len()).filter(|&at| lines[at].starts_with("// SAFETY:"));
    let whole = |at: usize| lines[at..].iter().take_while(|line| line.starts_with("//")).copied().collect();
    starts.map(|at| (at + 1, whole(at))).collect()
}

#[test]
fn every_safety_comment_cites_an_invariant() {
    let invariants = invariants();
    assert!(["M1", "M10", "L7"].iter().all(|name| invariants.contains(name)), "{invariants:?}");
    let mut n_reasons = 0;
    for (path, source) in sources("src").into_iter().chain(sources("../py/src")) {
        for (line, reason) in reasons(&source) {
            n_reasons += 1;
            let cites = reason.split(|c: char| !c.is_alphanumeric()).any(|word| invariants.contains(word));
            assert!(cites, "{}:{line}: {reason}", path.display());
        }
    }
    assert!(n_reasons > 30, "{n_reasons}");
}

#[test]
fn unsafe_code_is_in_the_documented_modules() {
    let (_, listed) = DOC.split_once("All `unsafe` of this crate is in the private modules ").unwrap();
    let listed: BTreeSet<&str> =
        listed.split_once(", and in tests.").unwrap().0.split('`').skip(1).step_by(2).collect();
    let mut found = BTreeSet::new();
    for (path, source) in sources("src") {
        let module = path.with_extension("").to_str().unwrap().replace('/', "::");
        let code = source.split("\nmod tests {").next().unwrap();
        let has_unsafe = code.lines().any(|line| line.split("//").next().unwrap().contains("unsafe "));
        if has_unsafe && !module.ends_with("tests") {
            found.insert(module);
        }
    }
    assert!(found.iter().eq(&listed), "{found:?}");
}
