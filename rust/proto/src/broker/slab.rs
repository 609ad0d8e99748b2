//! The broker's tables: a slab with typed 4-byte keys, and lists threaded through its items.
//!
//! Lists are intrusive, so that taking an item out of the middle (a cancelled order) costs the same as taking the
//! first.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// Names an item of a [`Slab`]. An `Option` of it also has 4 bytes.
pub(super) struct Key<K>(NonZeroU32, PhantomData<fn() -> K>);

impl<K> Key<K> {
    fn new(index: usize) -> Self {
        // A slab of 2^32 - 1 items would need hundreds of gigabytes; limits stop it long before.
        let n = u32::try_from(index + 1).unwrap_or(u32::MAX);
        Self(NonZeroU32::new(n).unwrap_or(NonZeroU32::MAX), PhantomData)
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<K> Clone for Key<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Key<K> {}
impl<K> PartialEq for Key<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K> Eq for Key<K> {}
impl<K> std::hash::Hash for Key<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<K> fmt::Debug for Key<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

enum Entry<K, T> {
    Full(T),
    Free(Option<Key<K>>),
}

/// A table of items that keep their key until they are removed; keys of removed items are used again.
pub(super) struct Slab<K, T> {
    entries: Vec<Entry<K, T>>,
    free: Option<Key<K>>,
    len: usize,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: None, len: 0 }
    }
}

impl<K, T> Slab<K, T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, item: T) -> Key<K> {
        self.len += 1;
        if let Some(key) = self.free {
            let entry = &mut self.entries[key.index()];
            if let Entry::Free(next) = *entry {
                self.free = next;
                *entry = Entry::Full(item);
                return key;
            }
        }
        self.entries.push(Entry::Full(item));
        Key::new(self.entries.len() - 1)
    }

    pub(super) fn remove(&mut self, key: Key<K>) -> Option<T> {
        let entry = self.entries.get_mut(key.index())?;
        if matches!(entry, Entry::Free(_)) {
            return None;
        }
        let Entry::Full(item) = std::mem::replace(entry, Entry::Free(self.free)) else {
            return None;
        };
        self.free = Some(key);
        self.len -= 1;
        Some(item)
    }

    pub(super) fn get(&self, key: Key<K>) -> Option<&T> {
        match self.entries.get(key.index()) {
            Some(Entry::Full(item)) => Some(item),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        match self.entries.get_mut(key.index()) {
            Some(Entry::Full(item)) => Some(item),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key<K>, &T)> {
        self.entries.iter().enumerate().filter_map(|(i, entry)| match entry {
            Entry::Full(item) => Some((Key::new(i), item)),
            Entry::Free(_) => None,
        })
    }
}

/// For keys that the broker's own tables hold: they always name an item.
impl<K, T> Index<Key<K>> for Slab<K, T> {
    type Output = T;
    fn index(&self, key: Key<K>) -> &T {
        match &self.entries[key.index()] {
            Entry::Full(item) => item,
            Entry::Free(_) => panic!("key {key:?} names a removed item"),
        }
    }
}
impl<K, T> IndexMut<Key<K>> for Slab<K, T> {
    fn index_mut(&mut self, key: Key<K>) -> &mut T {
        match &mut self.entries[key.index()] {
            Entry::Full(item) => item,
            Entry::Free(_) => panic!("key {key:?} names a removed item"),
        }
    }
}

/// The neighbours of an item in the one list that it is in.
pub(super) struct Links<K> {
    prev: Option<Key<K>>,
    next: Option<Key<K>>,
}

impl<K> Default for Links<K> {
    fn default() -> Self {
        Self { prev: None, next: None }
    }
}

/// An item that can be in a [`List`].
pub(super) trait Linked<K> {
    fn links(&self) -> &Links<K>;
    fn links_mut(&mut self) -> &mut Links<K>;
}

/// A list of items of one slab; an item is in one list at most.
pub(super) struct List<K> {
    head: Option<Key<K>>,
    tail: Option<Key<K>>,
    len: u32,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
}

impl<K> List<K> {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn front(&self) -> Option<Key<K>> {
        self.head
    }

    pub(super) fn after<T: Linked<K>>(key: Key<K>, slab: &Slab<K, T>) -> Option<Key<K>> {
        slab[key].links().next
    }

    pub(super) fn push_back<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>, key: Key<K>) {
        *slab[key].links_mut() = Links { prev: self.tail, next: None };
        match self.tail {
            Some(tail) => slab[tail].links_mut().next = Some(key),
            None => self.head = Some(key),
        }
        self.tail = Some(key);
        self.len += 1;
    }

    pub(super) fn push_front<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>, key: Key<K>) {
        *slab[key].links_mut() = Links { prev: None, next: self.head };
        match self.head {
            Some(head) => slab[head].links_mut().prev = Some(key),
            None => self.tail = Some(key),
        }
        self.head = Some(key);
        self.len += 1;
    }

    /// Takes out an item that is in this list.
    pub(super) fn remove<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>, key: Key<K>) {
        let Links { prev, next } = std::mem::take(slab[key].links_mut());
        match prev {
            Some(prev) => slab[prev].links_mut().next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => slab[next].links_mut().prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    pub(super) fn pop_back<T: Linked<K>>(&mut self, slab: &mut Slab<K, T>) -> Option<Key<K>> {
        let key = self.tail?;
        self.remove(slab, key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Tag {}
    struct Node(char, Links<Tag>);
    impl Linked<Tag> for Node {
        fn links(&self) -> &Links<Tag> {
            &self.1
        }
        fn links_mut(&mut self) -> &mut Links<Tag> {
            &mut self.1
        }
    }

    fn text(list: &List<Tag>, slab: &Slab<Tag, Node>) -> String {
        let keys = std::iter::successors(list.front(), |&key| List::after(key, slab));
        keys.map(|key| slab[key].0).collect()
    }

    #[test]
    fn lists_keep_their_order_whatever_is_taken_out() {
        let mut slab = Slab::default();
        let keys: Vec<_> = "abcd".chars().map(|c| slab.insert(Node(c, Links::default()))).collect();
        let mut list = List::default();
        list.push_back(&mut slab, keys[1]);
        list.push_back(&mut slab, keys[2]);
        list.push_front(&mut slab, keys[0]);
        list.push_back(&mut slab, keys[3]);
        assert_eq!(text(&list, &slab), "abcd");
        list.remove(&mut slab, keys[1]);
        assert_eq!(text(&list, &slab), "acd");
        assert_eq!(list.pop_back(&mut slab), Some(keys[3]));
        list.remove(&mut slab, keys[0]);
        assert_eq!((text(&list, &slab).as_str(), list.len()), ("c", 1));
        list.remove(&mut slab, keys[2]);
        assert!(list.is_empty() && list.front().is_none());
    }

    #[test]
    fn keys_of_removed_items_are_used_again() {
        let mut slab = Slab::<Tag, char>::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!((slab.remove(a), slab.get(a), slab.len()), (None, None, 1));
        assert_eq!(slab.insert('c'), a);
        assert_eq!((slab[a], slab[b]), ('c', 'b'));
        assert_eq!(size_of::<Option<Key<u64>>>(), 4);
    }
}
