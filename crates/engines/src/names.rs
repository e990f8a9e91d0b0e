//! Names of locks: one rule for all engines, so that a name can move from one engine to another.

use crate::error::EngineError;

/// Longest name, in bytes. Below the limits of all engines; the SQL engines index whole names.
pub const MAX_NAME_BYTES: usize = 512;
/// Longest part between slashes, in bytes.
const MAX_PART_BYTES: usize = 200;
/// Most locks of one request.
pub const MAX_LOCKS: usize = 256;
/// Longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;

/// Checks the name of a lock, such as `orders/42`.
///
/// # Errors
/// [`EngineError::Refused`] says which rule the name breaks.
pub fn check_name(name: &str) -> Result<(), EngineError> {
    let refuse = |why: String| Err(EngineError::Refused(format!("{name:?} is no name of a lock: {why}")));
    if name.is_empty() {
        return refuse("it is empty".into());
    }
    if name.len() > MAX_NAME_BYTES {
        return refuse(format!("it has {} bytes; at most {MAX_NAME_BYTES} are allowed", name.len()));
    }
    // What ZooKeeper refuses in a path.
    let refused = |c: &char| c.is_control() || matches!(*c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    if let Some(character) = name.chars().find(refused) {
        return refuse(format!("it contains the character U+{:04X}", u32::from(character)));
    }
    for part in name.split('/') {
        match part {
            "" => return refuse("a part between slashes is empty".into()),
            "." | ".." => return refuse(format!("it has the part '{part}'")),
            _ if part.len() > MAX_PART_BYTES => {
                return refuse(format!("a part has {} bytes; at most {MAX_PART_BYTES} are allowed", part.len()));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_without_tricks() {
        for good in ["a", "orders/42", "ä/ö", "a.b/..c", "with space", &"x/".repeat(200).as_str()[..399]] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
        let long = "x".repeat(MAX_PART_BYTES + 1);
        let longer = vec!["xxxx"; 120].join("/");
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", &long, &longer] {
            let error = check_name(bad).unwrap_err();
            assert!(matches!(&error, EngineError::Refused(why) if why.contains("is no name of a lock")), "{error}");
        }
    }
}
