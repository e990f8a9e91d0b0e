//! The operations as numbers, from the rows of the table in `operations.rs`, and those that servers keep to themselves.

use crate::row::*;
use crate::xid;

macro_rules! define {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $operation:ident = $number:literal $name:literal $abbreviation:literal
        $($field:ident: $body:ty,)?
        -> $reply:ident
        { $($rules:tt)* }
    )* })*) => {
        numbered! {
            /// An operation's number in a request's header.
            OpCode("operation") {
                $($($(#[doc = $line])* $operation = $number,)*)*
                /// Used between servers only.
                Notification = 0,
                /// Used between servers only.
                DeleteContainer = 20,
                /// Used between servers only.
                CreateSession = -10,
                /// Marks an error among the results of a multi.
                Error = -1,
            }
        }

        impl OpCode {
            /// Its row.
            #[must_use]
            pub const fn row(self) -> &'static Row {
                const fn between_servers(name: &'static str, abbreviation: &'static str) -> Row {
                    Row { name, abbreviation, reply: None, rules: OF_SESSION }
                }
                match self {
                    $($(Self::$operation => const {
                        &Row {
                            name: $name,
                            abbreviation: $abbreviation,
                            reply: Some(ReplyKind::$reply),
                            rules: Rules { $($rules)* },
                        }
                    },)*)*
                    Self::Notification => const { &between_servers("notification", "NA") },
                    Self::DeleteContainer => const { &between_servers("deleteContainer", "DELE") },
                    Self::CreateSession => const { &between_servers("createSession", "SESS") },
                    Self::Error => const { &between_servers("error", "NA") },
                }
            }
        }
    };
}

each_operation!(define);

impl OpCode {
    /// The operation to which ZooKeeper gives this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.row().name == name)
    }
}
