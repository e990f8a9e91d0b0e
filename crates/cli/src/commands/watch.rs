//! `lockkeeper watch`.

use lockkeeper_api::watch::ChangeKind;
use lockkeeper_client::{WatchItem, WatchOptions};

use super::client;
use crate::args::{Common, Watch};
use crate::failure::Failure;
use crate::output::{print_json_line, print_line, shown};

/// Prints changes until there are enough, or the history is gone.
pub(crate) async fn run(common: &Common, args: &Watch) -> Result<(), Failure> {
    let options = WatchOptions {
        recursive: args.recursive,
        from: args.from,
        // The first connection is as impatient as any command; once it has been made, the watch is there to stay.
        patience: Some(common.patience),
        ..WatchOptions::new(&args.path)
    };
    let mut watch = client(common)?.watch(options);
    let mut count = 0;
    while args.count.is_none_or(|enough| count < enough) {
        let Some(item) = watch.next().await else { break };
        let WatchItem::Change(change) = item? else {
            watch.be_patient();
            continue;
        };
        watch.be_patient();
        count += 1;
        if common.json {
            print_json_line(&change)?;
            continue;
        }
        let kind = match change.kind {
            ChangeKind::Created => "created",
            ChangeKind::Deleted => "deleted",
            ChangeKind::DataChanged => "data changed",
            ChangeKind::ChildrenChanged => "children changed",
        };
        print_line(&format!("{:>10}  {kind:<16}  {}", change.zxid, shown(&change.path)))?;
    }
    Ok(())
}
