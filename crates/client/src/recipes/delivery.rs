//! A delivered item: it is acknowledged, returned, or lost with its session.
//!
//! Acknowledging and returning are one transaction that checks the item's version. Each delivery raises the version,
//! so a consumer that lost its claim can do neither.

use lockkeeper_api::Code;
use lockkeeper_api::nodes::{Txn, TxnOp};

use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, refused_operation};

/// An item that is claimed by this process while its session lives.
///
/// Dropping it returns the item to the queue, in the background.
#[derive(Debug)]
#[must_use = "a delivery that is dropped is returned to the queue"]
pub struct Delivery {
    pub(super) claim: EphemeralNode,
    pub(super) item: String,
    pub(super) version: i32,
    pub(super) data: Vec<u8>,
}

impl Delivery {
    /// The item's data.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The item's name, as [`Queue::put`](super::Queue::put) gave it.
    pub fn name(&self) -> &str {
        self.claim.name()
    }

    /// How often the item has been delivered, this time included. From 2 on an earlier consumer may have done the work.
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.version).unwrap_or(u32::MAX)
    }

    /// Completes, with the reason, when the claim is lost with its session. Stop working then.
    pub async fn lost(&self) -> String {
        self.claim.session().lost().await
    }

    /// Acknowledges the item: the work is done, and the item is removed for good.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if the claim is lost; then another consumer does, or did, the work too. After
    /// [`UnknownOutcome`](crate::Error::UnknownOutcome) the item may be delivered again.
    pub async fn ack(self) -> Result<(), RecipeError> {
        self.ack_with(Vec::new()).await
    }

    /// Acknowledges the item together with further operations, all or none: so they are applied once per item.
    ///
    /// # Errors
    /// As [`ack`](Self::ack). If one of `operations` is refused, nothing changes and the item is returned to the
    /// queue; the refusal numbers them from 2.
    pub async fn ack_with(self, operations: Vec<TxnOp>) -> Result<(), RecipeError> {
        let mut all = vec![
            TxnOp::Delete { path: self.item.clone(), version: Some(self.version) },
            TxnOp::Delete { path: self.claim.path().to_owned(), version: None },
        ];
        all.extend(operations);
        self.conclude(all).await
    }

    /// Returns the item at once, for another consumer. It keeps its position.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn give_back(self) -> Result<(), RecipeError> {
        let check = TxnOp::Check { path: self.item.clone(), version: Some(self.version) };
        let leave = TxnOp::Delete { path: self.claim.path().to_owned(), version: None };
        self.conclude(vec![check, leave]).await
    }

    async fn conclude(self, operations: Vec<TxnOp>) -> Result<(), RecipeError> {
        let session = self.claim.session().clone();
        run_to_completion(&session.clone(), async move {
            match session.client().txn(&Txn { operations }).await {
                Ok(_) => {
                    self.claim.forget();
                    Ok(())
                }
                Err(error) => match refused_operation(&error) {
                    Some((0 | 1, Code::NoNode | Code::BadVersion)) => {
                        let why = "its claim was removed, and another consumer may have taken it since";
                        Err(RecipeError::Stale { what: format!("item {}", self.item), why: why.into() })
                    }
                    _ => Err(error.into()),
                },
            }
        })
        .await
    }
}
