//! As much JSON as a report needs.

use std::fmt;

use crate::outcome::Outcome;
use crate::times::Times;

/// One object, its fields in the order of their addition.
pub(crate) struct Object(Vec<(String, String)>);

impl Object {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn number(&mut self, name: &str, value: f64) {
        let digits = if value.abs() < 1000.0 { 2 } else { 0 };
        self.0.push((name.to_owned(), format!("{value:.digits$}")));
    }

    /// A text that needs no escapes.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.0.push((name.to_owned(), format!("\"{value}\"")));
    }

    pub(crate) fn times(&mut self, name: &str, times: &Times) {
        self.0.push((
            name.to_owned(),
            format!("{{\"p50\": {:.2}, \"p99\": {:.2}}}", times.p50_us, times.p99_us),
        ));
    }

    pub(crate) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<()> {
        let mut inner = Self::new();
        fill(&mut inner)?;
        self.0.push((name.to_owned(), inner.to_string()));
        Ok(())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (n, (name, value)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}\"{name}\": {value}")?;
        }
        f.write_str("}")
    }
}
