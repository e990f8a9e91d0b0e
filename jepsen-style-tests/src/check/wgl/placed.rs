//! The set of placed operations in a compact form. Operations that must be placed come in the order of their
//! completion, so the placed ones are nearly a prefix, and only the end of it is stored.

/// A set of operations, by number: those that must take place first, the others behind them.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    must: Vec<u64>,
    may: Vec<u64>,
    first_of_may: usize,
    /// No word of `must` before this one lacks a bit.
    full: usize,
}

impl Placed {
    /// None yet, of so many that must and so many that may take place.
    pub(super) fn none(must: usize, may: usize) -> Self {
        Self { must: vec![0; must.div_ceil(64)], may: vec![0; may.div_ceil(64)], first_of_may: must, full: 0 }
    }

    pub(super) fn insert(&mut self, at: usize) {
        *self.word(at) |= 1 << self.bit(at);
        while self.must.get(self.full) == Some(&u64::MAX) {
            self.full += 1;
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        *self.word(at) &= !(1 << self.bit(at));
        if at < self.first_of_may {
            self.full = self.full.min(at / 64);
        }
    }

    fn word(&mut self, at: usize) -> &mut u64 {
        if at < self.first_of_may { &mut self.must[at / 64] } else { &mut self.may[(at - self.first_of_may) / 64] }
    }

    fn bit(&self, at: usize) -> usize {
        if at < self.first_of_may { at % 64 } else { (at - self.first_of_may) % 64 }
    }

    /// This set together with the number of a state. Equal keys are equal sets and states.
    pub(super) fn key(&self, state: u32) -> Box<[u64]> {
        let rest = &self.must[self.full..];
        let used = rest.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let may = self.may.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let mut key = Vec::with_capacity(2 + used + may);
        key.push(u64::from(state));
        // Histories have far fewer than 2^38 operations.
        key.push((self.full as u64) << 32 | used as u64);
        key.extend_from_slice(&rest[..used]);
        key.extend_from_slice(&self.may[..may]);
        key.into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_equal_keys_whatever_the_way_there() {
        let mut one = Placed::none(200, 70);
        for at in (0..130).chain([140, 205, 269]) {
            one.insert(at);
        }
        let mut other = Placed::none(200, 70);
        for at in [269, 205, 140, 199, 230].into_iter().chain((0..130).rev()) {
            other.insert(at);
        }
        assert_ne!(one.key(3), other.key(3));
        other.remove(199);
        other.remove(230);
        assert_eq!(one.key(3), other.key(3));
        assert_ne!(one.key(3), one.key(4));
        one.remove(5);
        assert_ne!(one.key(3), other.key(3));
        one.insert(5);
        assert_eq!(one.key(3), other.key(3));
        assert!(one.key(3).len() <= 6, "a prefix of 128 takes no room");
    }

    #[test]
    fn what_must_and_what_may_do_not_mix() {
        let (mut must, mut may) = (Placed::none(64, 64), Placed::none(64, 64));
        must.insert(3);
        may.insert(64 + 3);
        assert_ne!(must.key(0), may.key(0));
    }
}
