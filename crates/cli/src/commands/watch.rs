//! `lockkeeper watch`: prints changes of nodes.

use lockkeeper_api::watch::ChangeKind;
use lockkeeper_client::{WatchItem, WatchOptions};

use crate::args::{Common, Watch};
use crate::connect::client;
use crate::failure::Failure;
use crate::output::{escaped, print_json_line, print_line};

/// Prints changes until `--count` is reached or the history is compacted.
pub(crate) async fn run(common: &Common, args: &Watch) -> Result<(), Failure> {
    let options = WatchOptions {
        recursive: args.recursive,
        from: args.from,
        // `--patience` limits the first connection only. Once connected, the watch retries for ever.
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
        print_line(&format!("{:>10}  {kind:<16}  {}", change.zxid, escaped(&change.path)))?;
    }
    Ok(())
}
