//! A token that is drawn here and stored before the cluster is asked to take it, so that it is not lost with an answer.
//!
//! With `--out` it is in a file that only its owner can read. The file must never take the place of another token that
//! may still be needed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use lockkeeper_api::access::AccessChanged;
use lockkeeper_client::{AccessToken, Error};

use crate::args::{Common, TokenFileArgs};
use crate::failure::{EXIT_UNKNOWN_OUTCOME, Failure, print_error};
use crate::output::{print_json, print_line};

const MODE: u32 = 0o600;

/// See the module's text.
pub(super) struct StoredToken {
    pub(super) token: AccessToken,
    file: Option<TokenFile>,
}

/// The file of a token. Dropping it removes the file, if it was made here and is not kept.
struct TokenFile {
    /// Where the token is to be.
    target: PathBuf,
    /// Where it is until the cluster has taken it: beside the target, if that holds another token.
    path: PathBuf,
    /// Whether it is removed.
    unneeded: bool,
}

impl StoredToken {
    /// Draws a token and writes it to the file, if there is to be one; or takes the token of the file, for a call that
    /// is repeated.
    pub(super) fn prepare(args: &TokenFileArgs) -> Result<Self, Failure> {
        let Some(target) = &args.out else { return Ok(Self { token: AccessToken::draw(), file: None }) };
        if args.reuse {
            let token = AccessToken::from_file(target).map_err(|error| Failure::usage(error.to_string()))?;
            let file = TokenFile { target: target.clone(), path: target.clone(), unneeded: false };
            return Ok(Self { token, file: Some(file) });
        }
        let token = AccessToken::draw();
        let path = if args.force && target.exists() { beside(target) } else { target.clone() };
        write_new(&path, token.expose()).map_err(|error| cannot_make(&path, &error))?;
        Ok(Self { token, file: Some(TokenFile { target: target.clone(), path, unneeded: true }) })
    }

    /// The cluster has taken the token: it is in its file, or is printed.
    pub(super) fn hand_over(self, common: &Common, changed: &AccessChanged) -> Result<(), Failure> {
        let Some(mut file) = self.file else {
            let token = self.token.expose().to_owned();
            return if common.json {
                print_json(&AccessChanged { token: Some(token), ..changed.clone() })
            } else {
                print_line(&token)
            };
        };
        file.unneeded = false;
        if let Err(error) = file.replace_target() {
            let (path, target) = (file.path.display(), file.target.display());
            return Err(Failure::failed(format!("the token is in {path}, and cannot be moved to {target}: {error}")));
        }
        if common.json { print_json(changed) } else { Ok(()) }
    }

    /// It is not known whether the cluster has taken the token, so it stays.
    pub(super) fn keep(self, error: &Error) -> Result<(), Failure> {
        let Some(mut file) = self.file else {
            print_error(&format!("lockkeeper auth: {error}; the token on standard output counts if it did"));
            print_line(self.token.expose())?;
            return Err(Failure::silent(EXIT_UNKNOWN_OUTCOME));
        };
        file.unneeded = false;
        let path = file.path.display();
        let why = format!(
            "{error}; {path} has the token, which counts if it did: ask `lockkeeper --token-file {path} auth whoami`, \
             or repeat this command with --out {path} --reuse"
        );
        Err(Failure::new(EXIT_UNKNOWN_OUTCOME, why))
    }
}

impl TokenFile {
    fn replace_target(&self) -> io::Result<()> {
        if self.path == self.target {
            return Ok(());
        }
        fs::rename(&self.path, &self.target)?;
        sync_directory(&self.target)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if self.unneeded {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A name beside this one, for its successor.
fn beside(target: &Path) -> PathBuf {
    let mut name: OsString = target.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes a file that only its owner can read, with this token, and syncs it.
fn write_new(path: &Path, token: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(MODE).open(path)?;
    let written = writeln!(file, "{token}").and_then(|()| file.sync_all()).and_then(|()| sync_directory(path));
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn cannot_make(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    match error.kind() {
        ErrorKind::AlreadyExists => Failure::failed(format!(
            "{path} exists; name a new file, add --force to replace it, or add --reuse if it has the token of an \
             earlier call whose outcome is unknown"
        )),
        _ => Failure::failed(format!("cannot make the token file {path}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn args(out: &Path) -> TokenFileArgs {
        TokenFileArgs { out: Some(out.to_owned()), force: false, reuse: false }
    }

    fn unknown() -> Error {
        Error::UnknownOutcome("the connection broke".into())
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn target() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        (directory, path)
    }

    #[test]
    fn the_file_is_private_and_there_before_the_call() {
        let (_directory, path) = target();
        let stored = StoredToken::prepare(&args(&path)).unwrap();
        assert_eq!(content(&path), format!("{}\n", stored.token.expose()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(stored);
        assert!(!path.exists(), "the call was refused");
        let kept = StoredToken::prepare(&args(&path)).unwrap().keep(&unknown()).unwrap_err();
        assert_eq!(kept.code, EXIT_UNKNOWN_OUTCOME);
        assert!(path.exists(), "it may count");
    }

    #[test]
    fn a_file_is_replaced_only_by_force_and_only_by_a_token_that_counts() {
        let (_directory, path) = target();
        fs::write(&path, "another").unwrap();
        assert!(StoredToken::prepare(&args(&path)).is_err());
        let force = TokenFileArgs { force: true, ..args(&path) };
        drop(StoredToken::prepare(&force).unwrap());
        assert_eq!((content(&path), beside(&path).exists()), ("another".into(), false), "the call was refused");
        let stored = StoredToken::prepare(&force).unwrap();
        let token = stored.token.expose().to_owned();
        assert!(stored.keep(&unknown()).is_err());
        assert_eq!((content(&path), content(&beside(&path))), ("another".into(), format!("{token}\n")));
        assert!(StoredToken::prepare(&force).is_err(), "what may count is not replaced either");
        fs::remove_file(beside(&path)).unwrap();
        let mut stored = StoredToken::prepare(&force).unwrap();
        let file = stored.file.as_mut().unwrap();
        file.unneeded = false;
        file.replace_target().unwrap();
        assert_eq!((content(&path), beside(&path).exists()), (format!("{}\n", stored.token.expose()), false));
    }

    #[test]
    fn a_repeated_call_takes_the_token_of_the_file_and_leaves_it() {
        let (_directory, path) = target();
        let reuse = TokenFileArgs { reuse: true, ..args(&path) };
        assert!(StoredToken::prepare(&reuse).is_err(), "there is none");
        let token = AccessToken::draw();
        write_new(&path, token.expose()).unwrap();
        let again = StoredToken::prepare(&reuse).unwrap();
        assert_eq!(again.token, token);
        drop(again);
        assert_eq!(content(&path), format!("{}\n", token.expose()));
    }
}
