//! Error records: texts of failed orders. Suppliers take a record and the client frees it.

use super::area::{Area, ErrorRecord, MAX_TEXT};
use super::atomics::Ordering;

/// Writes the text of a failed order into a record, if one is free, before the order is published as failed.
pub(crate) fn put(area: &Area, supplier: u32, slot: u32, text: &str) {
    let holder = pack(supplier, slot);
    let taken = area.errors().iter().find(|record| {
        // SYNC(error-read): pairs with `get` and `free`; the client has read the previous text.
        record.holder.compare_exchange(0, holder, Ordering::Acquire, Ordering::Relaxed).is_ok()
    });
    let Some(record) = taken else { return };
    let mut len = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    for (to, byte) in record.text.iter().zip(&text.as_bytes()[..len]) {
        to.store(*byte, Ordering::Relaxed);
    }
    record.len.store(len as u32, Ordering::Relaxed);
}

/// Reads the text of an order that `supplier` failed, and frees its record. `None` where it got no record.
pub(crate) fn get(area: &Area, supplier: u32, slot: u32) -> Option<String> {
    let is_theirs = |record: &&ErrorRecord| record.holder.load(Ordering::Relaxed) == pack(supplier, slot);
    let record = area.errors().iter().find(is_theirs)?;
    let len = (record.len.load(Ordering::Relaxed) as usize).min(MAX_TEXT);
    let text: Vec<u8> = record.text[..len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    // SYNC(error-read): pairs with `put`.
    record.holder.store(0, Ordering::Release);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Frees the record of an order that ended otherwise; those of a dead supplier when `slot` is `None`.
pub(crate) fn free(area: &Area, supplier: u32, slot: Option<u32>) {
    for record in area.errors() {
        let holder = record.holder.load(Ordering::Relaxed);
        let is_theirs = match slot {
            Some(slot) => holder == pack(supplier, slot),
            None => holder as u32 == supplier + 1,
        };
        if is_theirs {
            // SYNC(error-read): pairs with `put`.
            record.holder.store(0, Ordering::Release);
        }
    }
}

fn pack(supplier: u32, slot: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(supplier + 1)
}
