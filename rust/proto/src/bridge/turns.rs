//! Which bridge takes orders first where there are fewer than all of them may take.

/// What a bridge may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// How many orders.
    pub orders: usize,
    /// Of them, those for suppliers of its host that have none.
    pub idle: usize,
}

/// The turns of bridges that take orders of the same lanes.
#[derive(Debug, Default)]
pub struct Turns {
    first: usize,
}

impl Turns {
    /// Places of bridges in `rooms`, and how many orders each may take there: first those for suppliers that have none,
    /// then what its room allows. Another bridge is the first one in each turn.
    pub fn next(&mut self, rooms: &[Room]) -> impl Iterator<Item = (usize, usize)> {
        self.first = (self.first + 1) % rooms.len().max(1);
        let first = self.first;
        let places = move || (first..rooms.len()).chain(0..first);
        let idle = places().map(|at| (at, rooms[at].idle));
        let others = places().map(|at| (at, rooms[at].orders - rooms[at].idle));
        idle.chain(others).filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_supplier_has_one_before_any_has_two_and_no_bridge_is_always_first() {
        let rooms = [Room { orders: 3, idle: 1 }, Room { orders: 2, idle: 0 }, Room { orders: 4, idle: 4 }];
        let mut turns = Turns::default();
        let mut next = || turns.next(&rooms).collect::<Vec<_>>();
        assert_eq!(next(), [(2, 4), (0, 1), (1, 2), (0, 2)]);
        assert_eq!(next(), [(2, 4), (0, 1), (0, 2), (1, 2)]);
        assert_eq!(next(), [(0, 1), (2, 4), (0, 2), (1, 2)]);
        assert_eq!(turns.next(&[]).count(), 0);
    }
}
