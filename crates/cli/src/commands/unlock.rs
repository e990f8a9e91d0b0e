//! `lockkeeper unlock --force`: takes a lock from its holder.

use lockkeeper_client::Client;

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
    let client = client(common)?;
    // Looked at before: afterwards there is nothing to be seen. Only for what is printed.
    let delayed = is_delay(&client, args).await;
    let released = client.force_release(&args.name, args.token).await?;
    if common.json {
        return print_json(&released);
    }
    let (name, token, zxid) = (shown(&args.name), args.token, released.zxid);
    print_line(&match delayed {
        true => format!("ended the delay of {name} that the dead holder of token {token} left, at zxid {zxid}"),
        false => format!("took {name} from the holder of token {token} at zxid {zxid}"),
    })
}

/// Whether that token is of a place that is kept free after its holder has died.
async fn is_delay(client: &Client, args: &Unlock) -> bool {
    let Ok(view) = client.lock(&args.name).await else { return false };
    view.holders.iter().any(|request| request.token == args.token && request.delayed_until_ms.is_some())
}
