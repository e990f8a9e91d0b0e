//! `lockkeeper unlock --force`: takes a lock from its holder.

use super::client;
use crate::args::{Common, Unlock};
use crate::failure::Failure;
use crate::output::{print_json, print_line, shown};

/// Breaks the grant, if the force of it was asked for.
pub(crate) async fn run(common: &Common, args: &Unlock) -> Result<(), Failure> {
    if !args.force {
        return Err(Failure::usage(format!(
            "a lock is given back by its holder; taking {} from one that may still be at work lets two hold it unless the resource checks tokens. Make sure that the holder is dead, then repeat with --force",
            shown(&args.name)
        )));
    }
    let released = client(common)?.force_release(&args.name, args.token).await?;
    if common.json {
        return print_json(&released);
    }
    print_line(&format!("took {} from the holder of token {} at zxid {}", shown(&args.name), args.token, released.zxid))
}
