//! Which class of what waits for a link is written next: deficit round robin by bytes, control before all others.

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What the ends of a session say to each other.
    Control,
    /// WANT and the answers that have no sample.
    Orders,
    /// Samples.
    Samples,
    /// Rows of flows.
    Rows,
    /// Weights of models.
    Weights,
    /// Slices of collectives.
    Collectives,
}

/// How many classes there are.
pub const N_CLASSES: usize = 6;
const CLASSES: [Class; N_CLASSES] =
    [Class::Control, Class::Orders, Class::Samples, Class::Rows, Class::Weights, Class::Collectives];
/// Share of each class while all of them wait; control has none, as it never waits.
const WEIGHTS: [usize; N_CLASSES] = [0, 8, 4, 4, 1, 4];
/// Bytes that a weight of 1 is worth in one round.
const QUANTUM: usize = 32 << 10;

/// The turns of the classes of one link.
#[derive(Debug, Default)]
pub struct Classes {
    /// Bytes that each class may still write in its turn.
    deficits: [usize; N_CLASSES],
    turn: usize,
}

impl Classes {
    /// The class of which the next frame is written, if any waits.
    ///
    /// `waiting`: bytes of the first frame of each class, 0 where none waits.
    pub fn next(&mut self, waiting: [usize; N_CLASSES]) -> Option<Class> {
        if waiting[0] > 0 || waiting.iter().all(|&bytes| bytes == 0) {
            return (waiting[0] > 0).then_some(Class::Control);
        }
        loop {
            let (bytes, deficit) = (waiting[self.turn], &mut self.deficits[self.turn]);
            if bytes > 0 && bytes <= *deficit {
                *deficit -= bytes;
                return Some(CLASSES[self.turn]);
            }
            if bytes == 0 {
                *deficit = 0;
            }
            self.turn = (self.turn + 1) % N_CLASSES;
            self.deficits[self.turn] += WEIGHTS[self.turn] * QUANTUM;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 256 << 10;

    /// Bytes of each class after `n` frames.
    fn written(waiting: [usize; N_CLASSES], n: usize) -> [usize; N_CLASSES] {
        let (mut classes, mut bytes) = (Classes::default(), [0; N_CLASSES]);
        for _ in 0..n {
            let next = classes.next(waiting).unwrap() as usize;
            bytes[next] += waiting[next];
        }
        bytes
    }

    #[test]
    fn control_goes_first_and_nothing_waits_for_nothing() {
        let mut classes = Classes::default();
        assert_eq!(classes.next([0; N_CLASSES]), None);
        for _ in 0..100 {
            assert_eq!(classes.next([9, 9, 9, 9, 9, 9]), Some(Class::Control));
        }
    }

    #[test]
    fn bytes_are_shared_by_weight_however_long_the_frames_are() {
        for waiting in [[0, PIECE, PIECE, PIECE, PIECE, PIECE], [0, 9_000, 700, PIECE, 40_000, 3_000]] {
            let bytes = written(waiting, 200_000);
            let total: usize = bytes.iter().sum();
            for (class, weight) in WEIGHTS.iter().enumerate() {
                let (share, fair) = (bytes[class] as f64 / total as f64, *weight as f64 / 21.0);
                assert!((share - fair).abs() < 0.01, "{class}: {share} of {fair}");
            }
        }
        // What the others do not use is no loss.
        assert_eq!(written([0, 0, 0, 0, PIECE, 0], 10), [0, 0, 0, 0, 10 * PIECE, 0]);
    }

    #[test]
    fn a_sample_waits_for_one_piece_of_weights_at_most() {
        for n_before in 0..50 {
            let mut classes = Classes::default();
            for _ in 0..n_before {
                classes.next([0, 0, 0, 0, PIECE, 0]);
            }
            let n_ahead = (0..).find(|_| classes.next([0, 0, 64, 0, PIECE, 0]) == Some(Class::Samples));
            assert!(n_ahead <= Some(1), "{n_ahead:?} pieces after {n_before}");
        }
    }
}
