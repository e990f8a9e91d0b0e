//! One item of a queue: it is put, delivered, given back or its holder's session ends, delivered again, and
//! acknowledged once.

use super::Model;

/// What is asked about an item, or happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemAsk {
    /// To be put into the queue.
    Put,
    /// To be given to somebody.
    Take {
        /// For whom: a session.
        owner: u64,
        /// For the how manieth time. Where nobody was told of a giving out, the next has a number more.
        attempt: u32,
    },
    /// To be done with.
    Acknowledge {
        /// By whoever was given it for that time.
        attempt: u32,
    },
    /// To be another's again.
    GiveBack {
        /// By whoever was given it for that time.
        attempt: u32,
    },
    /// The session ends, and lets fall what it was given. As with [`super::LockAsk::SessionEnds`].
    SessionEnds {
        /// Whose.
        owner: u64,
    },
}

/// What is answered: that it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemDone;

/// An item, not there at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemModel;

/// Where an item is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ItemState {
    /// It was never put.
    #[default]
    Nowhere,
    /// In the queue.
    Free {
        /// How often it was given out.
        given: u32,
    },
    /// In somebody's hands.
    Held {
        /// Whose.
        owner: u64,
        /// For the how manieth time.
        attempt: u32,
    },
    /// Done with.
    Acknowledged,
}

impl Model for ItemModel {
    type State = ItemState;
    type Input = ItemAsk;
    type Output = ItemDone;

    fn init(&self) -> ItemState {
        ItemState::default()
    }

    fn step(&self, state: &ItemState, input: &ItemAsk, _: Option<&ItemDone>) -> Option<ItemState> {
        match (*input, *state) {
            (ItemAsk::Put, ItemState::Nowhere) => Some(ItemState::Free { given: 0 }),
            (ItemAsk::Take { owner, attempt }, ItemState::Free { given }) if attempt > given => {
                Some(ItemState::Held { owner, attempt })
            }
            (ItemAsk::Acknowledge { attempt }, ItemState::Held { attempt: now, .. }) if attempt == now => {
                Some(ItemState::Acknowledged)
            }
            (ItemAsk::GiveBack { attempt }, ItemState::Held { attempt: now, .. }) if attempt == now => {
                Some(ItemState::Free { given: attempt })
            }
            (ItemAsk::SessionEnds { owner: ended }, ItemState::Held { owner, attempt }) if owner == ended => {
                Some(ItemState::Free { given: attempt })
            }
            (ItemAsk::SessionEnds { .. }, _) => Some(*state),
            _ => None,
        }
    }
}
