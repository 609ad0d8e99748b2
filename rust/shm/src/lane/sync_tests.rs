//! Every ordered access to an atomic is named, and every name has both its sides.

use std::collections::BTreeMap;

const SOURCES: [(&str, &str); 6] = [
    ("bell.rs", include_str!("bell.rs")),
    ("ring.rs", include_str!("ring.rs")),
    ("peers.rs", include_str!("peers.rs")),
    ("errors.rs", include_str!("errors.rs")),
    ("owner.rs", include_str!("owner.rs")),
    ("worker.rs", include_str!("worker.rs")),
];
/// How far behind its name an access may be.
const REACH: usize = 5;

#[derive(Debug, Default)]
struct Sides {
    releases: usize,
    acquires: usize,
}

fn orders(line: &str) -> (bool, bool) {
    let code = line.split("//").next().unwrap_or_default();
    let both = code.contains("Ordering::AcqRel") || code.contains("Ordering::SeqCst");
    (both || code.contains("Ordering::Release"), both || code.contains("Ordering::Acquire"))
}

#[test]
fn every_name_has_two_sides() {
    let mut tags: BTreeMap<&str, Sides> = BTreeMap::new();
    for (file, source) in SOURCES {
        let lines: Vec<&str> = source.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((_, named)) = line.split_once("// SYNC(") else { continue };
            let (tag, _) = named.split_once(')').unwrap();
            let reach = &lines[at + 1..(at + 1 + REACH).min(lines.len())];
            let named = reach.iter().map(|line| orders(line)).find(|sides| sides.0 || sides.1);
            let (releases, acquires) =
                named.unwrap_or_else(|| panic!("{file}:{}: SYNC({tag}) names no ordered access", at + 1));
            let sides = tags.entry(tag).or_default();
            sides.releases += usize::from(releases);
            sides.acquires += usize::from(acquires);
        }
    }
    assert!(tags.len() >= 10, "{tags:?}");
    for (tag, sides) in &tags {
        assert!(sides.releases > 0 && sides.acquires > 0, "SYNC({tag}) has one side only: {sides:?}");
    }
    for bell in ["bell", "awaited-bell"] {
        assert!(tags[bell].releases == 2, "a fence is both sides at once: there must be two");
    }
}

#[test]
fn every_ordered_access_has_a_name() {
    for (file, source) in SOURCES {
        let lines: Vec<&str> = source.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let (releases, acquires) = orders(line);
            if releases || acquires {
                let before = &lines[at.saturating_sub(REACH)..at];
                assert!(before.iter().any(|line| line.contains("// SYNC(")), "{file}:{}: {line}", at + 1);
            }
        }
    }
}
