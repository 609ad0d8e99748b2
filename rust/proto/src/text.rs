//! Texts of bounded length.

/// At most `max` bytes of a text, whole characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A text of a peer as it is shown to a user: in one line, without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Keeps the end: the last lines of a traceback contain the error.
pub(crate) fn end_of(text: String, max_bytes: usize) -> String {
    let mut start = text.len().saturating_sub(max_bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    if start == 0 { text } else { text[start..].to_owned() }
}
