//! What can be told of a node from its configuration and its machine, whether it runs or not.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_server::{Config, OpenFiles};
use lockkeeper_tls::first_expiry_unix_s;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access};

use super::{Check, Verdict, disk, network};

const CONFIGURATION: &str = "configuration";
const DIRECTORY: &str = "data directory";
const OPEN_FILES: &str = "open files";
const KEYS: &str = "private keys";
const CERTIFICATES: &str = "certificates";

/// What a data directory grants nobody but its owner: anything to group and others.
const FOREIGN: u32 = 0o077;
/// The same for a private key, which its group may read: root is its owner where only the node's group may use it.
const FOREIGN_TO_KEY: u32 = 0o037;
/// A directory that many share, such as `/tmp`.
const STICKY: u32 = 0o1000;
const DAY_S: i64 = 86_400;
/// As in the alerts LockkeeperCertificateExpiresSoon and LockkeeperCertificateExpires.
pub(crate) const EXPIRES_SOON_S: i64 = 14 * DAY_S;
pub(crate) const EXPIRES_S: i64 = DAY_S;

/// Looks at a node's configuration and at this machine.
pub(crate) fn examine(file: &Path) -> Vec<Check> {
    let config = match Config::read(file) {
        Ok(config) => config,
        Err(error) => return vec![Check::problem(CONFIGURATION, error.to_string(), "correct the configuration")],
    };
    let storage = &config.storage;
    let mut checks = vec![configuration(file, &config)];
    let is_running = is_in_use(&storage.directory);
    checks.push(directory(&storage.directory, is_running));
    match existing(&storage.directory) {
        Some(existing) => {
            checks.push(disk::judge_space(disk::free_bytes(&existing), storage));
            checks.push(disk::judge_syncs(disk::measure_syncs(&existing), &config.timing, storage));
        }
        None => checks.push(Check::skipped("disk sync", "no directory above the data directory exists")),
    }
    checks.push(open_files(lockkeeper_server::open_files(&config)));
    let names = network::names(&config);
    checks.push(network::judge_names(&config, &names, &network::resolve(&names)));
    match config.check() {
        Ok(checked) => checks.extend(network::listeners(&checked, is_running)),
        Err(_) => checks.push(Check::skipped("listeners", "the configuration is not valid")),
    }
    let (certificates, keys) = tls_files(&config);
    let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed());
    let read = |file: &Path| first_expiry_unix_s(file).map_err(|error| error.to_string());
    let expiries = certificates.into_iter().map(|(key, file)| (key, read(&file))).collect::<Vec<_>>();
    checks.push(certificates_of(&expiries, now_unix_s));
    checks.push(private_keys(&keys));
    checks
}

fn configuration(file: &Path, config: &Config) -> Check {
    if let Err(error) = lockkeeper_server::check_config(config) {
        return Check::problem(CONFIGURATION, error.to_string(), "correct the configuration; the node does not start");
    }
    match config.warnings().as_slice() {
        [] => Check::ok(CONFIGURATION, format!("{} is valid", file.display())),
        warnings => Check::warning(CONFIGURATION, warnings.join("; "), "see docs/running.md for what the keys mean"),
    }
}

/// The directory, or the nearest one above it that exists.
fn existing(directory: &Path) -> Option<PathBuf> {
    let above = directory.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    above.into_iter().find(|path| path.is_dir()).map(Path::to_path_buf)
}

/// Whether a process uses the data directory; `None` if this user may not look.
fn is_in_use(directory: &Path) -> Option<bool> {
    let lock = match File::open(directory.join("lock")) {
        Ok(file) => Flock::lock(file, FlockArg::LockSharedNonblock),
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(false),
        Err(_) => return None,
    };
    match lock {
        Ok(_) => Some(false),
        Err((_, Errno::EWOULDBLOCK)) => Some(true),
        Err(_) => None,
    }
}

fn directory(directory: &Path, is_running: Option<bool>) -> Check {
    let shown = directory.display();
    let found = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => return Check::problem(DIRECTORY, format!("{shown} is no directory"), "set storage.directory"),
        Err(error) if error.kind() == ErrorKind::NotFound => return missing_directory(directory),
        Err(error) => {
            let remedy = "run this as the user that runs the node, or make that user the owner";
            return Check::problem(DIRECTORY, format!("{shown} cannot be read: {error}"), remedy);
        }
    };
    let mode = found.mode() & 0o7777;
    if access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        let remedy = "run this as the user that runs the node; if it is that user, make it the owner (chown)";
        return Check::problem(DIRECTORY, format!("{shown} cannot be written by this user (mode {mode:o})"), remedy);
    }
    if mode & STICKY != 0 {
        let remedy = "give the node a directory of its own (storage.directory)";
        return Check::warning(DIRECTORY, format!("{shown} is one that all users share (mode {mode:o})"), remedy);
    }
    if mode & FOREIGN != 0 {
        let found = format!("{shown} is open to other users of this machine (mode {mode:o})");
        return Check::warning(DIRECTORY, found, format!("chmod 700 {shown}; the node does it when it starts"));
    }
    let used = match is_running {
        Some(true) => "in use by a running node",
        Some(false) => "not in use",
        None => "this user cannot tell whether it is in use",
    };
    Check::ok(DIRECTORY, format!("{shown}: mode {mode:o}, {used}"))
}

fn missing_directory(directory: &Path) -> Check {
    let shown = directory.display();
    let Some(above) = existing(directory) else {
        return Check::problem(DIRECTORY, format!("{shown} does not exist"), "set storage.directory");
    };
    if access(&above, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        let found = format!("{shown} does not exist, and {} cannot be written by this user", above.display());
        return Check::problem(DIRECTORY, found, "make the directory, and the user that runs the node its owner");
    }
    Check::ok(DIRECTORY, format!("{shown} does not exist yet; the node makes it"))
}

fn open_files(files: Option<OpenFiles>) -> Check {
    let Some(OpenFiles { limit, fit, wanted, is_too_low }) = files else {
        return Check::skipped(OPEN_FILES, "the system does not tell the limit");
    };
    let found = format!("of {wanted} connections {} fit into this user's limit of {limit} open files", fit.min(wanted));
    if is_too_low {
        let remedy = "raise the limit (ulimit -n, LimitNOFILE=), or lower limits.connections and zookeeper.connections";
        return Check::warning(OPEN_FILES, found, remedy);
    }
    Check::ok(OPEN_FILES, found)
}

/// The certificates and authorities that a configuration names, and the private keys.
fn tls_files(config: &Config) -> (Vec<(String, PathBuf)>, Vec<PathBuf>) {
    let (mut certificates, mut keys) = (Vec::new(), Vec::new());
    let mut add = |section: &str, certificate: &Path, key: &Path, authority: Option<&Path>| {
        certificates.push((format!("{section}.certificate"), certificate.to_path_buf()));
        certificates.extend(authority.map(|authority| (format!("{section}.authority"), authority.to_path_buf())));
        keys.push(key.to_path_buf());
    };
    for (section, tls) in [("tls.client", &config.tls.client), ("tls.zookeeper", &config.tls.zookeeper)] {
        if let Some(tls) = tls {
            add(section, &tls.certificate, &tls.key, tls.authority.as_deref());
        }
    }
    if let Some(tls) = &config.tls.peer {
        add("tls.peer", &tls.certificate, &tls.key, Some(&tls.authority));
    }
    (certificates, keys)
}

/// The verdict on a certificate that is valid for so long.
pub(crate) fn judge_expiry(left_s: i64) -> Verdict {
    match left_s {
        _ if left_s < EXPIRES_S => Verdict::Problem,
        _ if left_s < EXPIRES_SOON_S => Verdict::Warning,
        _ => Verdict::Ok,
    }
}

/// A time that is left, in words.
pub(crate) fn left(left_s: i64) -> String {
    match left_s {
        ..0 => format!("expired {} days ago", left_s.unsigned_abs() / DAY_S.unsigned_abs()),
        _ => format!("valid for {} days", left_s / DAY_S),
    }
}

fn certificates_of(expiries: &[(String, Result<i64, String>)], now_unix_s: i64) -> Check {
    let renew = "renew it (docs/security.md#renewing-a-certificate); the node takes the new file without a restart";
    if let Some((key, why)) = expiries.iter().find_map(|(key, expiry)| Some((key, expiry.as_ref().err()?))) {
        return Check::problem(CERTIFICATES, format!("{key}: {why}"), "put a certificate there that can be read");
    }
    let soonest = expiries.iter().filter_map(|(key, expiry)| Some((key, *expiry.as_ref().ok()?)));
    let Some((key, expiry)) = soonest.min_by_key(|(_, expiry)| *expiry) else {
        return Check::skipped(CERTIFICATES, "no listener has TLS");
    };
    let left_s = expiry - now_unix_s;
    let found = format!("{key} is the first of {} to expire: {}", expiries.len(), left(left_s));
    match judge_expiry(left_s) {
        Verdict::Problem => Check::problem(CERTIFICATES, found, renew),
        Verdict::Warning => Check::warning(CERTIFICATES, found, renew),
        Verdict::Ok | Verdict::Skipped => Check::ok(CERTIFICATES, found),
    }
}

fn private_keys(keys: &[PathBuf]) -> Check {
    if keys.is_empty() {
        return Check::skipped(KEYS, "no listener has TLS");
    }
    let open = |key: &PathBuf| {
        let mode = fs::metadata(key).ok()?.mode() & 0o7777;
        (mode & FOREIGN_TO_KEY != 0).then(|| format!("{} (mode {mode:o})", key.display()))
    };
    let open: Vec<String> = keys.iter().filter_map(open).collect();
    if open.is_empty() {
        return Check::ok(KEYS, format!("{} are readable by their owner and group only", keys.len()));
    }
    let found = format!("open to other users of this machine: {}", open.join(", "));
    let remedy = "chmod 600 it, or 640 if its group is the node's own; if others may have read it, renew the \
                  certificate with a new key";
    Check::warning(KEYS, found, remedy)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_data_directory_is_private_and_can_be_made() {
        let base = tempfile::tempdir().unwrap();
        let verdict = |path: &Path| directory(path, Some(false)).verdict;
        let own = base.path().join("data");
        assert_eq!(verdict(&own.join("deep")), Verdict::Ok, "the node makes it");
        fs::create_dir(&own).unwrap();
        for (mode, expected) in
            [(0o700, Verdict::Ok), (0o750, Verdict::Warning), (0o1777, Verdict::Warning), (0o701, Verdict::Warning)]
        {
            fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            assert_eq!(verdict(&own), expected, "{mode:o}");
        }
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(verdict(&file), Verdict::Problem);
        assert_eq!(verdict(&file.join("below")), Verdict::Problem);
    }

    #[test]
    fn a_locked_directory_is_in_use() {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(is_in_use(base.path()), Some(false));
        let file = File::create(base.path().join("lock")).unwrap();
        assert_eq!(is_in_use(base.path()), Some(false));
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(is_in_use(base.path()), Some(true));
        drop(held);
        assert_eq!(is_in_use(base.path()), Some(false));
    }

    #[test]
    fn too_few_open_files_are_a_warning() {
        let files = |is_too_low| Some(OpenFiles { limit: 1024, fit: 512, wanted: 900, is_too_low });
        assert_eq!(open_files(files(true)).verdict, Verdict::Warning);
        assert_eq!(open_files(files(false)).verdict, Verdict::Ok);
        assert_eq!(open_files(None).verdict, Verdict::Skipped);
    }

    #[test]
    fn certificates_near_their_end_are_seen() {
        let verdict = |left: &[i64]| {
            let expiries: Vec<_> = left.iter().map(|left| ("tls.client".to_owned(), Ok(1_000 + left))).collect();
            certificates_of(&expiries, 1_000).verdict
        };
        assert_eq!(verdict(&[]), Verdict::Skipped);
        assert_eq!(verdict(&[EXPIRES_SOON_S + 1]), Verdict::Ok);
        assert_eq!(verdict(&[EXPIRES_SOON_S + 1, EXPIRES_SOON_S - 1]), Verdict::Warning);
        assert_eq!((verdict(&[EXPIRES_S - 1]), verdict(&[-3 * DAY_S])), (Verdict::Problem, Verdict::Problem));
        let unreadable = [("tls.peer".to_owned(), Err("cannot be read".to_owned()))];
        assert_eq!(certificates_of(&unreadable, 0).verdict, Verdict::Problem);
    }

    #[test]
    fn a_key_that_others_may_read_is_a_warning() {
        let base = tempfile::tempdir().unwrap();
        let key = base.path().join("key");
        fs::write(&key, "").unwrap();
        let verdict = |mode| {
            fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            private_keys(std::slice::from_ref(&key)).verdict
        };
        for mode in [0o400, 0o440, 0o600, 0o640] {
            assert_eq!(verdict(mode), Verdict::Ok, "{mode:o}");
        }
        for mode in [0o604, 0o644, 0o650, 0o660, 0o602] {
            assert_eq!(verdict(mode), Verdict::Warning, "{mode:o}");
        }
        assert_eq!(private_keys(&[]).verdict, Verdict::Skipped);
    }
}
