//! An item in a taker's hands: acknowledged, given back, or lost with its session.
//!
//! Both ways out are one transaction that checks the item's version, which each taking raises: who lost the claim can do neither.

use lockkeeper_api::Code;
use lockkeeper_api::nodes::{Txn, TxnOp};

use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, refused_operation};

/// An item that is this taker's, for as long as its session lives.
///
/// Dropping it gives the item back, in the background.
#[derive(Debug)]
#[must_use = "an item that is dropped is given back"]
pub struct Delivery {
    pub(super) claim: EphemeralNode,
    pub(super) item: String,
    pub(super) version: i32,
    pub(super) data: Vec<u8>,
}

impl Delivery {
    /// What was put.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The item's name, as [`Queue::put`](super::Queue::put) gave it.
    pub fn name(&self) -> &str {
        self.claim.name()
    }

    /// For the how-many-th time it is given out, from 1. From 2 on somebody may have done the work already.
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.version).unwrap_or(u32::MAX)
    }

    /// Completes, with the reason, when the item is no longer this taker's because its session is lost. Stop working then.
    pub async fn lost(&self) -> String {
        self.claim.session().lost().await
    }

    /// The work is done: removes the item for good.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if the item is no longer this taker's; then another does, or did, the work too. With
    /// [`UnknownOutcome`](crate::Error::UnknownOutcome) it may be given out again.
    pub async fn ack(self) -> Result<(), RecipeError> {
        self.ack_with(Vec::new()).await
    }

    /// The same, together with further operations: all of it or nothing, so what they write is written once.
    ///
    /// # Errors
    /// As [`ack`](Self::ack). If one of `operations` is refused nothing changes and the item is given back; the refusal counts them
    /// from 2.
    pub async fn ack_with(self, operations: Vec<TxnOp>) -> Result<(), RecipeError> {
        let mut all = vec![
            TxnOp::Delete { path: self.item.clone(), version: Some(self.version) },
            TxnOp::Delete { path: self.claim.path().to_owned(), version: None },
        ];
        all.extend(operations);
        self.settle(all).await
    }

    /// Gives the item back at once, for another to take. It keeps its place.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn give_back(self) -> Result<(), RecipeError> {
        let check = TxnOp::Check { path: self.item.clone(), version: Some(self.version) };
        let leave = TxnOp::Delete { path: self.claim.path().to_owned(), version: None };
        self.settle(vec![check, leave]).await
    }

    async fn settle(self, operations: Vec<TxnOp>) -> Result<(), RecipeError> {
        let session = self.claim.session().clone();
        run_to_completion(&session.clone(), async move {
            match session.client().txn(&Txn { operations }).await {
                Ok(_) => {
                    self.claim.forget();
                    Ok(())
                }
                Err(error) => match refused_operation(&error) {
                    Some((0 | 1, Code::NoNode | Code::BadVersion)) => {
                        let why = "its claim was removed, and another may have taken it since";
                        Err(RecipeError::Stale { what: format!("item {}", self.item), why: why.into() })
                    }
                    _ => Err(error.into()),
                },
            }
        })
        .await
    }
}
